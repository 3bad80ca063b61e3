#pragma once
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `gather` of a deck.
struct GatherConfig {
  GatherGranularity granularity = GatherGranularity::automatic;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("granularity", self.granularity, OneOf(), may_change,
          "What full sharding gathers at once. block; module: its attention, or its feed-forward; auto: module where "
          "backward needs other codes than what it computes again, else block. Same bits");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;

  bool operator==(const GatherConfig&) const = default;
};

/// Whether full sharding all-gathers a module at a time: if gather.granularity says so; with `auto`, if the two copies
/// of a weight travel apart and recomputation is selective. `config.precision.primary_weights` must be filled.
bool gathers_modules(const RunConfig& config);

}  // namespace tessera
