#pragma once
#include <vector>

#include "core/device/device.hpp"
#include "core/params/masters.hpp"
#include "core/state/state_dict.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// Exponential moving averages of all masters (EMA), whatever rule steps them: this rank's slice of every bucket, fp32.
/// State slot "ema", the tensors of slot "model". An average depends on its master alone, so its bits do not depend on
/// ranks or layout.
class Average {
 public:
  static constexpr const char* slot = "ema";

  /// `decay`: 0 < decay < 1. Allocates. Local.
  Average(Device& device, const ParamLayout& layout, const Ranks& ranks, double decay);

  /// Begins with the masters. Orders on `stream`. Local.
  void initialise(Stream& stream, const Masters& masters);
  /// Zeroes them, gaps too, before saved ones are filled in. Orders on `stream`. Local.
  void clear(Stream& stream);
  /// average = decay average + (1 - decay) master, to be called when the masters have been stepped. A step whose clip()
  /// says skip changes nothing. A launch a bucket. Orders on `stream`. Local.
  void step(Stream& stream, const Masters& masters, const ClipResult* clip);

  const std::vector<BucketSlice>& slices() const { return slices_; }

 private:
  float rate_;  ///< 1 - decay, rounded once
  std::vector<BucketSlice> slices_;
};

}  // namespace tessera
