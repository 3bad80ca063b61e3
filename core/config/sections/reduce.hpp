#pragma once
#include <span>

#include "core/config/section.hpp"

namespace tessera {

/// Section `reduce` of a deck.
struct ReduceConfig {
  double bucket_mib = 100;
  ReduceOrder order = ReduceOrder::rank;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("bucket_mib", self.bucket_mib, above_to(0, 65536), may_change, "MiB of fp32 gradients that travel together");
    v.key("order", self.order, OneOf(), may_change,
          "Order in which the gradients of a step's micro-batches are summed. batch: theirs, one after the other, so "
          "that bits do not depend on the number of ranks; rank: those of a rank first, in one exchange a step");
  }

  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const ReduceConfig&) const = default;
};

}  // namespace tessera
