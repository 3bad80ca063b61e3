#pragma once
#include <span>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `reduce` of a deck.
struct ReduceConfig {
  double bucket_mib = 100;
  ReduceOrder order = ReduceOrder::rank;
  GradientWire wire = GradientWire::fp32;
  std::vector<KeptGradients> keep;
  WireRounding rounding = WireRounding::nearest;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("bucket_mib", self.bucket_mib, above_to(0, 65536), may_change, "MiB of fp32 gradients that travel together");
    v.key("order", self.order, OneOf(), told_of_sums,
          "Order in which the gradients of a step's micro-batches are summed. batch: theirs, one after the other, so "
          "that bits do not depend on the number of ranks; rank: those of a rank first, in one exchange a step");
    v.key("wire", self.wire, OneOf(), told,
          "Format to which the gradient of each micro-batch is rounded before it is summed, on one rank too, and in "
          "which it travels between ranks: 4, 2 or 1.03 bytes an element. Sums are fp32. Needs order batch");
    v.key("keep", self.keep, OneOf(), told, "Gradients that stay in fp32 whatever the wire");
    v.key("rounding", self.rounding, OneOf(), told,
          "How wire bf16 rounds: to the nearest, or at random, by seed, step, micro-batch and element");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const ReduceConfig&) const = default;
};

}  // namespace tessera
