#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"

namespace tessera {

class Updated;
struct BucketSlice;
struct StateDict;

/// The fp32 master weights: this rank's slice of every bucket, gaps and padding zero. They alone are initialised,
/// stepped, saved and loaded; weights are always made from them.
class Masters {
 public:
  Masters(Device& device, const ParamLayout& layout, const Ranks& ranks);

  /// This rank's slice of one bucket.
  const Tensor& shard(BucketId bucket) const { return shards_[bucket]; }
  /// All slices as the named tensors of slot "model": ranges of this memory, without memory for digests. Local.
  StateDict state(const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks) const;

  /// Draws the initial values as each ParamSpec says. The bits do not depend on ranks, layout or back end. Orders on
  /// `stream`. Local.
  Updated initialise(Stream& stream, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
                     std::uint64_t seed);

  /// Exchanges the values of every slice with those of `others`, which hold one slice a bucket. Orders on `stream`.
  /// Local.
  Updated exchange(Stream& stream, std::span<const BucketSlice> others);

  const std::vector<Tensor>& shards() const { return shards_.rows(); }

  /// Zeroes every slice, gaps and padding too, then calls `fill`, which writes the saved values. Orders on `stream`.
  Updated restore(Stream& stream, const std::function<void()>& fill);

 private:
  IndexedBy<BucketId, Tensor> shards_;
};

}  // namespace tessera
