#include "core/params/cast.hpp"

#include <map>

#include "core/params/placed_table.hpp"

namespace tessera {
namespace {

bool agrees(const QuantizeTable& table) { return traits_of(table.format()).agreement != formats::Agreement::nothing; }

}  // namespace

ShardedWeights::ShardedWeights(Device& device, std::span<const ShardedWeight> weights) {
  std::map<FormatId, std::vector<QuantizedMatrix>> by_format;
  for (const ShardedWeight& w : weights) {
    const FormatTraits format = traits_of(w.format);
    if (format.columnwise == formats::Columnwise::requantized)
      throw Error(Exit::internal, w.matrix.name + ": " + std::string(format.name) +
                                      " travels as bf16: cast it to format bf16, quantize after the gather");
    QuantizedMatrix matrix = w.matrix;
    if (!matrix.values) matrix.values = {nullptr, DType::f32, Shape{0}};
    by_format[w.format].push_back(matrix);
  }
  std::int64_t entries = 0;
  for (const auto& [format, matrices] : by_format) {
    first_.push_back(entries);
    tables_.push_back(placed(device, QuantizeTable(format, matrices)));
    entries += tables_.back().amax_entries();
  }
  amaxes_ = device.allocate(Category::staging, DType::bf16, {entries});
}

Tensor ShardedWeights::amaxes(std::size_t i) const { return amaxes_.flat(first_[i], tables_[i].amax_entries()); }

void measure_master_weights(Stream& stream, const ShardedWeights& weights) {
  const std::vector<QuantizeTable>& tables = weights.tables();
  for (std::size_t i = 0; i < tables.size(); ++i)
    if (agrees(tables[i])) block_amax(stream, tables[i], weights.amaxes(i));
}

void write_master_weights(Stream& stream, const ShardedWeights& weights) {
  const std::vector<QuantizeTable>& tables = weights.tables();
  for (std::size_t i = 0; i < tables.size(); ++i) partial_cast(stream, tables[i], weights.amaxes(i));
}

void cast_master_weights(Stream& stream, const ShardedWeights& weights, Communicator& communicator) {
  measure_master_weights(stream, weights);
  if (const Tensor bits = weights.agreed_bits(); bits.elements() > 0) {
    // bf16 numbers >= 0 order as their bits, and an amax is never NaN: a maximum of bits is that of the numbers.
    const Exchange exchange{{}, bits, {}, {}};
    communicator.submit(stream, {Collective::all_reduce_max, {&exchange, 1}, -1, "block amaxes"}).wait(stream);
  }
  write_master_weights(stream, weights);
}

void build_columnwise(Stream& stream, const ShardedWeights& weights) {
  for (const QuantizeTable& table : weights.tables())
    if (agrees(table)) build_columnwise(stream, table);
}

}  // namespace tessera
