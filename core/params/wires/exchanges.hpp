#pragma once
#include <array>
#include <span>
#include <vector>

#include "core/params/wires/wire.hpp"

namespace tessera {

/// The arrays that the all-gathers of a wire's groups complete, by group, place and set of copies.
class Exchanges {
 public:
  Exchanges(const ParamLayout& layout, std::size_t places)
      : of_(layout.groups().size(), std::vector<BySides>(places)) {}

  /// Adds an exchange to every all-gather into part.place that gathers part.sides (none: to all of them).
  void add(GroupId group, const Held& part, const Exchange& exchange) {
    for (std::size_t sides = 0; sides < sets; ++sides)
      if (contains(static_cast<Sides>(sides), part.sides)) at(group, part.place)[sides].push_back(exchange);
  }
  std::span<Exchange> of(GroupId group, const Held& held) {
    const auto place = static_cast<std::size_t>(held.place);
    if (place >= of_[group].size()) return {};  // a slot of another wire's groups
    return of_[group][place][static_cast<std::size_t>(held.sides)];
  }

 private:
  static constexpr std::size_t sets = 4;
  using BySides = std::array<std::vector<Exchange>, sets>;

  BySides& at(GroupId group, int place) { return of_[group][static_cast<std::size_t>(place)]; }

  IndexedBy<GroupId, std::vector<BySides>> of_;
};

}  // namespace tessera
