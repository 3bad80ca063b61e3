#pragma once
#include <cstdint>

#include "core/layout/layout.hpp"
#include "core/params/state.hpp"
#include "kernels/base/stream.hpp"

namespace tessera {

class ParamSync;

/// The fp32 main gradients of a ParamSync, as a view. Only the tokens of a step change them.
class Gradients {
 public:
  explicit Gradients(ParamSync& sync) : sync_(sync) {}

  int buckets() const;
  /// The whole bucket, and this rank's slice of it, which holds the sum over ranks once Reduced.
  const Tensor& storage(BucketId bucket) const;
  const Tensor& shard(BucketId bucket) const;
  GradientState state(GroupId group) const;
  /// Number of reductions so far that overlapped: other work was launched before anything waited for them.
  std::int64_t overlapped() const;

 private:
  friend class Token;
  friend class Accumulating;
  friend class Reduced;
  friend class Clipped;

  Gradient slot(ParamId param);
  void written(Stream& stream, ParamId param);
  void reduce(Stream& stream);  ///< every group becomes Reduced; collective over the world
  void drop();                  ///< every group back to Empty, whatever was written; finishes reductions in flight
  void release();               ///< Reduced -> Empty
  void outdate_weights(Stream& stream);  ///< collective over the world
  Tensor claim_weights(BucketId bucket) const;

  ParamSync& sync_;
};

}  // namespace tessera
