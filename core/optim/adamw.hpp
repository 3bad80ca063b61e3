#pragma once
#include "core/device/device.hpp"
#include "core/optim/rule.hpp"
#include "kernels/optim/adamw.hpp"

namespace tessera {

/// AdamW on element-sharded buckets: moments m and v in fp32 or bf16, weight decay by role.
class AdamW final : public Rule {
 public:
  AdamW(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
        std::vector<BucketId> buckets, const AdamWCoefficients& coefficients, double weight_decay,
        DType moments = DType::f32);

  void initialise(Stream& stream) override;
  void step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces& places) override;
  void visit_state(const SlotVisitor& visit) const override;
  void visit_counters(const CounterVisitor& visit) const override;

 private:
  /// A run of neighbouring parameters of equal weight decay in a slice, gaps included: gaps are zero in masters,
  /// gradients and moments, and a step leaves them zero.
  struct Run {
    std::size_t slice;  ///< of m_ and v_
    std::int64_t begin, count;
    float weight_decay;
  };
  void add_runs(const ParamRegistry& registry, const std::vector<ShardRange>& pieces, double weight_decay);
  void place_table(Stream& stream, const Clipped& gradients, const Masters& masters);

  Device& device_;
  AdamWCoefficients coefficients_;
  std::vector<BucketSlice> m_, v_;
  std::vector<Run> runs_;
  AdamWTable table_;
  Tensor table_memory_;  ///< of equal size on all ranks, as planned
  std::vector<const void*> addresses_;  ///< from which the table was made
};

/// AdamW's counters before its first update.
std::vector<RuleCounter> fresh_adamw_counters();

}  // namespace tessera
