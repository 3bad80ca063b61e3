#include "kernels/base/prefix.hpp"
#include "kernels/base/strips.hpp"
#include "kernels/convert/back.hpp"

namespace tessera {
namespace {

template <class To, class From> void convert_as(Stream& stream, const ConvertTable& table, int first, int last) {
  const ConvertTable::Row* const rows = table.device_rows();
  const std::int64_t before = table.rows()[static_cast<std::size_t>(first)].first_chunk;
  const std::int64_t end = table.rows()[static_cast<std::size_t>(last)].first_chunk;
  launch_rows(stream, "convert_table", end - before, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const ConvertTable::Row& pair = row_of_piece(rows, first, last, &ConvertTable::Row::first_chunk, before + r);
    constexpr std::int64_t chunk = ConvertTable::chunk;
    const std::int64_t begin = (before + r - pair.first_chunk) * chunk, rest = pair.count - begin;
    To* const out = static_cast<To*>(pair.to) + begin;
    const From* const in = static_cast<const From*>(pair.from) + begin;
    row.each(rest < chunk ? rest : chunk,
             [&](std::int64_t j) { out[j] = To(static_cast<Accumulator<To>>(in[j])); });
  });
}

}  // namespace

ConvertTable::ConvertTable(std::span<const Pair> pairs) {
  if (!pairs.empty()) {
    to_ = pairs.front().to.type;
    from_ = pairs.front().from.type;
  }
  std::int64_t chunks = 0;
  for (const Pair& pair : pairs) {
    require(pair.to.type == to_ && pair.from.type == from_, "ConvertTable", "all pairs have the same two types");
    require(pair.to.elements() == pair.from.elements(), "ConvertTable", "element counts differ");
    add({pair.to.data, pair.from.data, pair.to.elements(), chunks});
    for (const void* place : {pair.to.data, pair.from.data})
      aligned_ = aligned_ && reinterpret_cast<std::uintptr_t>(place) % 16 == 0;
    chunks += ceil_div(pair.to.elements(), chunk);
  }
  add({nullptr, nullptr, 0, chunks});
}

void convert(Stream& stream, const ConvertTable& table, int first, int last) {
  require(0 <= first && first <= last && last <= table.pairs(), "convert", "takes a range of the table's pairs");
  if (first == last || (!stream.dry() && convert_table::convert_pairs(stream, table, first, last))) return;
  dispatch_real(table.to(), "convert", [&]<class To>() {
    dispatch_real(table.from(), "convert", [&]<class From>() { convert_as<To, From>(stream, table, first, last); });
  });
}

}  // namespace tessera
