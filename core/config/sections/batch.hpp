#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `batch` of a deck.
struct BatchConfig {
  std::int64_t global = 0;
  std::int64_t micro = 0;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("global", self.global, from_to(1, 1 << 24), on_request,
               "Sequences of one optimizer step, over all ranks");
    v.required("micro", self.micro, from_to(1, 1 << 24), told, "Sequences that a rank computes at once");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const OtherName> other_names();

  bool operator==(const BatchConfig&) const = default;
};

/// Advice for a batch.global that is no multiple of `ranks` micro-batches: "use batch.micro 1, 2 or 4, or batch.global
/// 12 or 18".
std::string batch_advice(const BatchConfig& batch, std::int64_t ranks);
/// Text that names batches for `ranks` with reduce.order batch. Each rank needs one micro-batch at least, and the
/// `expert` ranks of a set of experts need as many.
std::string any_ranks_advice(const BatchConfig& batch, std::int64_t ranks, std::int64_t expert);

}  // namespace tessera
