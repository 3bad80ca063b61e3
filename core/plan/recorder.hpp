#pragma once
#include <utility>
#include <vector>

#include "core/params/access.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/usage.hpp"
#include "kernels/base/indexed_by.hpp"

namespace tessera {

/// Stands in for weights and gradients in a dry pass. Hands out addresses that are never dereferenced, and records
/// every access to a weight and every contribution to a gradient.
class UsageRecorder final : public WeightSource, public GradientSink {
 public:
  /// `rules`: how the weights that it hands out will be held.
  explicit UsageRecorder(const ParamRegistry& registry, const WeightRules& rules = {});

  Use operand(Stream& stream, ParamId param, Side side) override;
  Gradient slot(ParamId param) override;
  void written(Stream& stream, ParamId param) override;

  /// All accesses since the last call.
  std::vector<Access> take_accesses();
  /// All contributions to gradients since the last call.
  std::vector<Contribution> take_contributions() { return std::exchange(contributions_, {}); }

 private:
  const ParamRegistry& registry_;
  WeightRules rules_;
  Half half_ = Half::forward;
  std::vector<Access> accesses_;
  std::vector<Contribution> contributions_;
  IndexedBy<ParamId, int> written_;  ///< number of contributions
};

}  // namespace tessera
