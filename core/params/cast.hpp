#pragma once
#include <span>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"
#include "kernels/quantize/quantize.hpp"

/// Quantized weights for trainers with sharded masters of their own. Cast on every rank, all-gather the bytes in the
/// trainer's own way, then build the columnwise copies that follow from them.
namespace tessera {

/// A weight whose copies lie whole on every rank, and the part of its fp32 master that this rank owns. That is `values`
/// from element `begin` on, empty if it owns none. If neither copy of a format can be derived from the other, the
/// weight must travel as bf16. Give it as format bf16, gather it, and quantize() the table.
struct ShardedWeight {
  FormatId format{};
  QuantizedMatrix matrix;
};

/// The quantization tables of all weights, in device memory. Every rank must list the same weights in the same order,
/// and masters must keep their addresses. Throws Error{internal} naming tensor, shape and rule. Local.
class ShardedWeights {
 public:
  ShardedWeights(Device& device, std::span<const ShardedWeight> weights);

  const std::vector<QuantizeTable>& tables() const { return tables_; }  ///< one per format
  /// Amaxes of table `i`, bf16: those of blocks, then those of members.
  Tensor amaxes(std::size_t i) const;
  /// The amaxes of all tables as u16 bits, for a maximum over ranks (all_reduce_max).
  Tensor agreed_bits() const { return {amaxes_.data, DType::u16, amaxes_.shape}; }

 private:
  std::vector<QuantizeTable> tables_;
  std::vector<std::int64_t> first_;
  Tensor amaxes_;
};

/// Quantizes this rank's part of every master. Writes its part of the rowwise data, and all rowwise scales, with the
/// bits that quantizing the whole weight would give. The amaxes of all weights and formats take ONE all-reduce. Orders
/// on `stream`. Collective over `communicator`.
void cast_master_weights(Stream& stream, const ShardedWeights& weights, Communicator& communicator);

/// The two halves of cast_master_weights. measure writes this rank's amaxes to ShardedWeights::amaxes(); the other one
/// expects their maxima over ranks there, and writes data and scales. Both order on `stream`. Local.
void measure_master_weights(Stream& stream, const ShardedWeights& weights);
void write_master_weights(Stream& stream, const ShardedWeights& weights);

/// Makes every columnwise copy that follows from the rowwise bytes, after these have been gathered. Orders on `stream`.
/// Local.
void build_columnwise(Stream& stream, const ShardedWeights& weights);

}  // namespace tessera
