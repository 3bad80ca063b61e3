#pragma once
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "core/params/masters.hpp"
#include "core/params/tokens.hpp"
#include "kernels/optim/adamw.hpp"

namespace tessera {

/// One named slot of optimizer state: this rank's slice of every bucket, fp32, laid out as the masters are.
struct StateSlot {
  const char* name;  ///< "adamw/m"
  std::span<const Tensor> shards;
};

/// Coefficients that do not change during a run.
struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
};

/// Steps the fp32 masters of this rank's slices. Holds the state of each rule; visit_state() is its only list.
class Optimizers {
 public:
  Optimizers(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
             const AdamWSettings& settings);

  /// m and v start at zero.
  void initialise(Stream& stream);

  /// AdamW on every bucket. `clock` and `rate` lie on the device; a skipped step writes the old values and leaves t.
  Updated step(Stream& stream, Clipped&& gradients, const Masters& masters, AdamWClock* clock, const float* rate);

  template <class Visitor>
  void visit_state(Visitor&& visit) const {
    visit(StateSlot{"adamw/m", m_});
    visit(StateSlot{"adamw/v", v_});
  }

 private:
  /// A run of a rank's slice in which one rule holds: neighbours of equal decay, with the gaps between them.
  struct Run {
    std::int64_t begin = 0, count = 0;
    float weight_decay = 0;
  };
  std::vector<Run> runs_of(const ParamRegistry& registry, const ParamLayout& layout, BucketId bucket,
                           const Ranks& ranks) const;

  AdamWSettings settings_;
  std::vector<Tensor> m_, v_;
  std::vector<std::vector<Run>> runs_;
};

}  // namespace tessera
