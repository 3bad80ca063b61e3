#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `model.rope_scaling` of a deck.
struct RopeScalingConfig {
  double factor = 0;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_seq_len = 0;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("factor", self.factor, from_to(1, 1e6), fixed, "How much slower the slowest pairs turn");
    v.key("low_freq_factor", self.low_freq_factor, from_to(1e-6, 1e6), fixed,
          "Pairs that turn fewer times in original_seq_len positions are slowed down by factor");
    v.key("high_freq_factor", self.high_freq_factor, from_to(1e-6, 1e6), fixed,
          "Pairs that turn more often in original_seq_len positions are left alone; those between slow down in part");
    v.required("original_seq_len", self.original_seq_len, from_to(1, 1 << 24), fixed,
               "Tokens of the sequences that the model learned from before");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();

  bool operator==(const RopeScalingConfig&) const = default;
};

}  // namespace tessera
