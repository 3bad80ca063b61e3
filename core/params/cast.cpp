#include "core/params/cast.hpp"

#include <map>

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
    QuantizeTable table(format, matrices);
    const Tensor memory = device.allocate(Category::weights, DType::u8, {table.bytes()});
    device.upload(device.compute(), memory, table.image());
    table.place(memory);
    first_.push_back(entries);
    entries += table.amax_entries();
    tables_.push_back(std::move(table));
  }
  amaxes_ = device.allocate(Category::staging, DType::bf16, {entries});
}

Tensor ShardedWeights::amaxes(std::size_t i) const { return amaxes_.flat(first_[i], tables_[i].amax_entries()); }

void cast_master_weights(Stream& stream, const ShardedWeights& weights, Communicator& communicator) {
  const std::vector<QuantizeTable>& tables = weights.tables();
  for (std::size_t i = 0; i < tables.size(); ++i)
    if (agrees(tables[i])) block_amax(stream, tables[i], weights.amaxes(i));
  if (const Tensor bits = weights.agreed_bits(); bits.elements() > 0) {
    // Magnitudes order as their bits do, and NaN is in none of them.
    const Exchange exchange{{}, bits, {}, {}};
    communicator.submit(stream, {Collective::all_reduce_max, {&exchange, 1}, -1, "block amaxes"}).wait(stream);
  }
  for (std::size_t i = 0; i < tables.size(); ++i) partial_cast(stream, tables[i], weights.amaxes(i));
}

void build_columnwise(Stream& stream, const ShardedWeights& weights) {
  for (const QuantizeTable& table : weights.tables())
    if (agrees(table)) build_columnwise(stream, table);
}

}  // namespace tessera
