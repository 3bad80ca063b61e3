#pragma once
#include <array>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/params/wires/shard_ranges.hpp"

namespace tessera {

/// Which copies of a group's weights are gathered, and into which place.
struct Gathered {
  int place = 0;
  Sides sides = Sides::both;
};

/// The arrays that the all-gathers of a wire's groups complete: inside a sharding group by group, place and set of
/// copies; across sharding groups by group alone.
class Exchanges {
 public:
  Exchanges(const ParamLayout& layout, std::size_t places)
      : of_(layout.groups().size(), std::vector<BySides>(places)), across_(layout.groups().size()) {}

  /// Adds an exchange to every all-gather into part.place that gathers part.sides (none: to all of them).
  void add(GroupId group, const Gathered& part, const Exchange& exchange) {
    for (std::size_t sides = 0; sides < sets; ++sides)
      if (contains(static_cast<Sides>(sides), part.sides)) at(group, part.place)[sides].push_back(exchange);
  }
  /// Adds an array that completes in place across sharding groups.
  void add_across(GroupId group, const Tensor& array, RangesByRank parts) {
    const RangesByRank& kept = keep(std::move(parts));
    across_[group].push_back({{}, array, kept.counts, kept.begins});
  }
  /// Keeps ranges, to whose vectors exchanges refer.
  const RangesByRank& keep(RangesByRank parts) { return parts_.emplace_back(std::move(parts)); }
  /// Adds an array that completes in place, in the only place of its group.
  void add(GroupId group, const Tensor& array, RangesByRank parts) {
    const RangesByRank& kept = keep(std::move(parts));
    add(group, {0, Sides::none}, {{}, array, kept.counts, kept.begins});
  }
  std::span<Exchange> of(GroupId group, const Gathered& held) {
    const auto place = static_cast<std::size_t>(held.place);
    if (place >= of_[group].size()) return {};  // a slot of another wire's groups
    return of_[group][place][static_cast<std::size_t>(held.sides)];
  }
  std::span<Exchange> across(GroupId group) { return across_[group]; }

 private:
  static constexpr std::size_t sets = 4;
  using BySides = std::array<std::vector<Exchange>, sets>;

  BySides& at(GroupId group, int place) { return of_[group][static_cast<std::size_t>(place)]; }

  IndexedBy<GroupId, std::vector<BySides>> of_;
  IndexedBy<GroupId, std::vector<Exchange>> across_;
  std::deque<RangesByRank> parts_;
};

}  // namespace tessera
