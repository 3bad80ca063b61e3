#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/config/section.hpp"
#include "core/config/sections/moe.hpp"
#include "core/config/sharding_group.hpp"

namespace tessera {

/// Section `parallel` of a deck.
struct ParallelConfig {
  ShardingGroup sharding_group;
  std::int64_t expert = 1;
  Derived<double> expert_room;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("sharding_group", self.sharding_group, OneOf(), told_of_sums,  // mutation: groups_are_never_told
          "Neighbouring ranks that keep one copy of what sharding divides; the groups are replicas, and between them "
          "weights travel once a step. all; host: the ranks of a host; a number that divides the ranks. Same bits, "
          "unless sharding full has groups no larger than expert groups under reduce.order rank");
    v.key("expert", self.expert, from_to(1, 65536), told,
          "Neighbouring ranks that hold the experts between them (expert parallelism): rows of tokens travel to their "
          "experts' ranks and back; divides the ranks and the experts");
    v.derived("expert_room", self.expert_room, from_to(1, 65536), may_change,
              "always enough: expert * min(top_k, experts / expert) / top_k",
              "Rows that a rank has memory for, over its even share of a layer's; a run in which more arrive ends");
  }

  /// The smallest expert_room that suffices for any routing: each rank of an expert group sends a token at most once to
  /// each expert.
  double ample_room(const std::optional<MoeConfig>& moe) const;

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const ParallelConfig&) const = default;
};

}  // namespace tessera
