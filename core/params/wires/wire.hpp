#pragma once
#include <memory>

#include "kernels/base/stream.hpp"

namespace tessera {

/// How a bucket's weights travel and are rebuilt. Not collective: the gather between stage and consume is ParamSync's.
class Wire {
 public:
  virtual ~Wire() = default;
  /// Writes Q(master shard) in its wire form where the gather expects it.
  virtual void stage(Stream& stream, const Tensor& weights_slice, const Tensor& master_shard) const = 0;
  /// After the gather: makes what the GEMMs read from what has travelled. The one place of post-processing.
  virtual void consume(Stream& stream, const Tensor& weights) const = 0;
};

/// Weights that travel as they are kept: bf16 (or fp32), gathered in place.
std::unique_ptr<Wire> plain_wire();

}  // namespace tessera
