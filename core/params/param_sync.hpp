#pragma once
#include <cstdint>
#include <vector>

#include "core/params/gradients.hpp"
#include "core/params/tokens.hpp"
#include "core/params/weights.hpp"

namespace tessera {

/// Keeps weights and gradients of all ranks in step: both state machines of every bucket group, and the order of their
/// collectives. The deep module of the trainer.
class ParamSync {
 public:
  ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
            const Masters& masters, Mesh& mesh, const SyncRules& rules);

  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }
  Gradients& gradients() { return gradients_; }

  /// The step's gradients, all Empty before. Not collective; what it hands out is.
  Accumulating accumulate() { return Accumulating(gradients_); }

  /// The masters have changed: every weight is outdated. With overlap the next forward gathers, group by group;
  /// without, all groups are staged, then each is gathered and consumed here. Collective.
  void publish(Stream& stream, Updated&& updated);

  /// Where every group's two machines stand, epochs aside: what a step does depends on nothing else here.
  std::vector<std::uint8_t> state() const;

  /// Brings every group to Ready. Collective.
  void settle(Stream& stream);

 private:
  Overlap gather_;
  Weights weights_;
  Gradients gradients_;
};

}  // namespace tessera
