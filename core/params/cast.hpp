#pragma once
#include <span>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"
#include "kernels/quantize/quantize.hpp"

/// Quantized weights for trainers with sharded masters of their own: cast on every rank, gather as they like (the
/// bytes are final), then build what can be derived.
namespace tessera {

/// A weight whose copies lie whole on every rank, and the part of its fp32 master that this rank owns: `values` and
/// `begin`, empty where it owns nothing. Formats whose copies are quantized apart travel as bf16: give such a weight as
/// format bf16, gather it, and quantize() the table.
struct ShardedWeight {
  FormatId format{};
  QuantizedMatrix matrix;
};

/// The tables of all weights, in device memory. Every rank lists the same weights in the same order; masters keep their
/// addresses. Throws Error{internal} naming tensor, shape and rule. Local.
class ShardedWeights {
 public:
  ShardedWeights(Device& device, std::span<const ShardedWeight> weights);

  const std::vector<QuantizeTable>& tables() const { return tables_; }  ///< one per format
  /// Block amaxes of table `i`, then those of its members: bf16.
  Tensor amaxes(std::size_t i) const;
  /// The amaxes of all tables, as the bits that a maximum over ranks (all_reduce_max) compares.
  Tensor agreed_bits() const { return {amaxes_.data, DType::u16, amaxes_.shape}; }

 private:
  std::vector<QuantizeTable> tables_;
  std::vector<std::int64_t> first_;
  Tensor amaxes_;
};

/// Writes this rank's part of every weight's rowwise data, and all rowwise scales, as quantizing the whole would: the
/// amaxes of all weights and formats are agreed on in ONE all-reduce. Collective over `communicator`; orders on
/// `stream`.
void cast_master_weights(Stream& stream, const ShardedWeights& weights, Communicator& communicator);

/// The two halves of cast_master_weights: this rank's amaxes, to ShardedWeights::amaxes(); then, from their maxima over
/// ranks, the bytes. Both order on `stream`. Local.
void measure_master_weights(Stream& stream, const ShardedWeights& weights);
void write_master_weights(Stream& stream, const ShardedWeights& weights);

/// After the gather: makes every columnwise copy that follows from the rowwise bytes. Orders on `stream`. Local.
void build_columnwise(Stream& stream, const ShardedWeights& weights);

}  // namespace tessera
