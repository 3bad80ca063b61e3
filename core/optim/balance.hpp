#pragma once
#include "core/device/device.hpp"
#include "core/optim/rule.hpp"

namespace tessera {

/// Loss-free balancing of experts: what a run fixes of it.
struct BalanceSettings {
  float rate = 0;     ///< by which a bias changes in a step
  double slots = 0;   ///< of a layer in a step: tokens of the global batch times top_k
};

/// The rule of counted buckets, which hold state of routers. A selection bias rises while its expert has fewer than its
/// share of the step's slots, and falls while it has more. A load becomes what the step counted. Their gradients are
/// the counts: no clipping, moments or decay.
class Balance final : public Rule {
 public:
  Balance(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
          std::vector<BucketId> buckets, const BalanceSettings& settings);

  void initialise(Stream& stream) override;
  void step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces& places) override;
  void visit_state(const SlotVisitor&) const override {}
  void visit_counters(const CounterVisitor&) const override {}

 private:
  struct Slice {
    BucketId bucket;
    std::vector<float> kinds;  ///< of each element: BalanceKind
    Tensor kind;               ///< the same on the device
  };

  Device& device_;
  BalanceSettings settings_;
  std::vector<Slice> slices_;
};

}  // namespace tessera
