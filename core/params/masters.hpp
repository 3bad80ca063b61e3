#pragma once
#include <functional>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"

namespace tessera {

class Updated;
struct StateDict;

/// The truth: this rank's fp32 slices of every bucket, gaps and padding zero. Initialised, stepped, saved, loaded; no
/// weight ever is.
class Masters {
 public:
  Masters(Device& device, const ParamLayout& layout, const Ranks& ranks);

  /// This rank's slice of one bucket.
  const Tensor& shard(BucketId bucket) const { return shards_[bucket]; }
  /// All shards as the named tensors of slot "model", without digests: ranges of this memory.
  StateDict state(const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks) const;

  /// Draws the initial values as each ParamSpec says: the same bits for any ranks, layout and back end.
  Updated initialise(Stream& stream, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
                     std::uint64_t seed);

  const std::vector<Tensor>& shards() const { return shards_.rows(); }

  /// Zeroes every slice, gaps and padding too; `fill` then writes what was saved.
  Updated restore(Stream& stream, const std::function<void()>& fill);

 private:
  IndexedBy<BucketId, Tensor> shards_;
};

}  // namespace tessera
