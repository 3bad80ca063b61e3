#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"
#include "core/config/sections/tensors.hpp"

namespace tessera {

/// Section `debug` of a deck.
struct DebugConfig {
  std::int64_t replica_hash_every = 0;
  std::int64_t spot_check_every = 0;
  ConfirmSkips confirm_skips = ConfirmSkips::automatic;
  std::string trace;
  std::string profile;
  TensorsConfig tensors;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("replica_hash_every", self.replica_hash_every, from_to(0, 1e12), may_change,
          "Steps between comparisons of the weights' bits on all ranks; 0: none");
    v.key("spot_check_every", self.spot_check_every, from_to(0, 1e12), may_change,
          "Steps between spot checks: each rank's first micro-batch is computed by another rank too (by one rank alone "
          "twice), and gradients of other bits end the run with code 8; 0: none");
    v.key("confirm_skips", self.confirm_skips, OneOf(), may_change,
          "Compute a step once more before it is skipped: equal bits are the data's fault, others a machine's, and "
          "the run ends with code 8. always: on GPUs too, where the host waits for each step then; auto: on CPUs only");
    v.key("trace", self.trace, Text::line_or_empty, may_change,
          "File of digests, a JSON line per step of this start; a resumed run keeps those before as FILE.1, FILE.2 and "
          "so on; empty: none");
    v.key("profile", self.profile, Text::line_or_empty, may_change,
          "File of a Chrome trace of steps 5 to 8 of a start, for Perfetto or chrome://tracing: regions, collectives "
          "and, on a GPU, every kernel; empty: none. Same bits");
    v.section("tensors", self.tensors, "Values of tensors inside chosen steps");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const DebugConfig&) const = default;
};

}  // namespace tessera
