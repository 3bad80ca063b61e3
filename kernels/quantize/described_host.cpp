#include "kernels/quantize/described_back.hpp"

#include <algorithm>
#include <atomic>

#include "kernels/base/launch.hpp"
#include "kernels/quantize/host_patch.hpp"

namespace tessera::quantizer::described {
namespace {

constexpr int edge = patch_edge;

/// The owned values of a patch, 0 elsewhere.
struct Values {
  alignas(64) float row[edge][edge];
  bool finite = true;

  Values(const Descriptor& d, const Patch& p, Reading reading) {
    for (int r = 0; r < p.rows; ++r) {
      const int first = p.first_owned(r, d.matrix.columns), end = p.end_owned(r, d.matrix.columns);
      std::fill_n(row[r], edge, 0.0f);
      for (int c = first; c < end; ++c) row[r][c] = value_at(d, reading, position_of(d, p, r, c));
      std::uint32_t most = 0;
      for (int c = first; c < end; ++c) most = larger(most, std::bit_cast<std::uint32_t>(row[r][c]) & 0x7FFFFFFFu);
      finite = finite && most < 0x7F800000u;
    }
  }
};

/// Magnitudes, scales and multipliers of a patch's blocks.
struct Grid {
  std::uint32_t top[Blocks::most];
  float multiplier[Blocks::most];
};

void find_tops(const Values& values, const Blocks& blocks, int rows, Grid& grid) {
  std::fill_n(grid.top, blocks.count, 0);
  for (int first = 0; first < rows; first += 1 << blocks.row_shift) {
    std::uint32_t by_column[edge] = {};
    for (int r = first; r < std::min(first + (1 << blocks.row_shift), rows); ++r)
      for (int c = 0; c < edge; ++c) by_column[c] = larger(by_column[c], magnitude(values.row[r][c]));
    for (int c = 0; c < edge; ++c) {
      std::uint32_t& top = grid.top[blocks.of(first, c)];
      top = larger(top, by_column[c]);
    }
  }
}

/// Not inlined, so that the compiler vectorises the loop.
[[gnu::noinline]] void encode_row(formats::DescribedElement element, const float* __restrict x,
                                  const float* __restrict multipliers, int n, std::uint8_t* __restrict codes) {
  for (int c = 0; c < n; ++c) codes[c] = static_cast<std::uint8_t>(element.encode(x[c] * multipliers[c]));
}
template <class T>
[[gnu::noinline]] void decode_row(formats::DescribedElement element, const std::uint8_t* __restrict codes,
                                  const float* __restrict steps, int n, T* __restrict out) {
  for (int c = 0; c < n; ++c) {
    const float x = steps[c] * element.decode(codes[c]);
    if constexpr (std::is_same_v<T, bf16>)
      out[c] = bf16(x);
    else
      out[c] = x;
  }
}

/// Stores the codes of the owned elements.
void store_codes(const Described& format, const Descriptor& d, const Patch& p, const Values& values,
                 const Blocks& blocks, const Grid& grid, std::byte* data) {
  if (data == nullptr) return;
  auto* const codes = reinterpret_cast<std::uint8_t*>(data);
  float multipliers[edge];
  for (int r = 0; r < p.rows; ++r) {
    const int first = p.first_owned(r, d.matrix.columns), end = p.end_owned(r, d.matrix.columns);
    if (first >= end) continue;
    for (int c = 0; c < edge; ++c) multipliers[c] = grid.multiplier[blocks.of(r, c)];
    encode_row(format.element, values.row[r] + first, multipliers + first, end - first,
               codes + position_of(d, p, r, first));
  }
}

/// Quantizes the blocks of one side; both sides' copies where they share them.
void quantize_side(const Described& format, const Descriptor& d, const Patch& p, const Values& values, Side side) {
  const Addresses& copy = d.side[static_cast<int>(side)];
  const bool shared = format.columnwise() == formats::Columnwise::shared;
  if (!shared && copy.data == nullptr && copy.scales == nullptr) return;
  const Blocks blocks(format, side, d, p);
  Grid grid;
  if (format.scaled()) find_tops(values, blocks, p.rows, grid);
  const TensorScale tensor = tensor_scale_of(format, shared && copy.amax == nullptr ? d.side[1] : copy, p.member);
  for (int block = 0; block < blocks.count; ++block) {
    const auto encoding = format.encoding(format.scaled() ? largest_of(grid.top[block]) : 0.0f, tensor);
    grid.multiplier[block] = encoding.multiplier;
    const std::int64_t place = blocks.place(p.member, block);
    if (!format.scaled() || place < 0 || !blocks.owned(d, p, block)) continue;
    if (shared)
      store_shared_scale(format, d, place, encoding.scale);
    else
      store_scale(format, copy.scales, place, encoding.scale);
  }
  store_codes(format, d, p, values, blocks, grid, shared && copy.data == nullptr ? d.side[1].data : copy.data);
}

void quantize_patch(const Described& format, const Descriptor& d, const Patch& p, Reading reading) {
  const Values values(d, p, reading);
  if (!values.finite && d.not_finite != nullptr && reading == Reading::bf16)
    std::atomic_ref(*d.not_finite).store(1, std::memory_order_relaxed);
  quantize_side(format, d, p, values, Side::rowwise);
  if (format.columnwise() != formats::Columnwise::shared) quantize_side(format, d, p, values, Side::columnwise);
}

template <class T>
void decode_patch(const Described& format, const Descriptor& d, const Patch& p, Side side, Decoding how) {
  const Addresses& copy = d.side[static_cast<int>(side)];
  if (copy.data == nullptr) return;
  const Blocks blocks(format, side, d, p);
  const float amax = copy.amax != nullptr ? copy.amax[p.member] : 0.0f;
  float step[Blocks::most], steps[edge];
  for (int block = 0; block < blocks.count; ++block) {
    const std::int64_t place = blocks.place(p.member, block);
    if (place < 0) continue;
    const Described::Scale scale = format.scaled() ? load_scale(format, copy.scales, place) : 0;
    step[block] = how == Decoding::tensor ? format.step(scale, amax) : format.factor_step(scale, amax);
  }
  for (int r = 0; r < p.rows; ++r) {
    for (int c = 0; c < p.columns; ++c) steps[c] = step[blocks.of(r, c)];
    const std::int64_t at = position_of(d, p, r, 0);
    decode_row(format.element, reinterpret_cast<const std::uint8_t*>(copy.data) + at, steps, p.columns,
               reinterpret_cast<T*>(d.values) + at);
  }
}

/// Amaxes of the patch's blocks over owned elements, where ranks agree on them; returns the largest.
float patch_amaxes(const Described& format, const Descriptor& d, const Patch& p, Reading reading,
                   std::uint16_t* amaxes) {
  const Values values(d, p, reading);
  const Blocks blocks(format, Side::rowwise, d, p);
  Grid grid;
  find_tops(values, blocks, p.rows, grid);
  std::uint32_t most = 0;
  for (int block = 0; block < blocks.count; ++block) {
    most = larger(most, grid.top[block]);
    const std::int64_t place = blocks.place(p.member, block);
    if (place >= 0 && amaxes != nullptr && formats::agrees_on_blocks(format.agreement()))
      amaxes[d.first_block + place] = bf16(largest_of(grid.top[block])).bits;
  }
  return largest_of(most);
}

void cast_unit(const Described& format, const TableView& table, Reading reading, const Amaxes& amaxes,
               const CastUnit& unit) {
  const Descriptor& d = table[unit.task];
  const Patch p = patch_of(d, unit.task);
  const TensorScale tensor = agreed_scale_of(format, d, p, amaxes, !unit.data);
  const Blocks blocks(format, Side::rowwise, d, p);
  Grid grid;
  for (int block = 0; block < blocks.count; ++block) {
    const std::int64_t place = blocks.place(p.member, block);
    const auto encoding = agreed_encoding(format, d, amaxes, tensor, place);
    grid.multiplier[block] = encoding.multiplier;
    const bool stored = format.scaled() && place >= 0 && (d.block_scales == nullptr || blocks.owned(d, p, block));
    if (!unit.data && stored) store_shared_scale(format, d, place, encoding.scale);
  }
  if (unit.data) store_codes(format, d, p, Values(d, p, reading), blocks, grid, d.side[0].data);
}

/// Calls f(unit, entry, patch) for the patches of a list.
template <class F>
void each_patch(Stream& stream, const char* name, const TableView& table, const Units& units, const F& f) {
  launch(stream, name, units.count, [=](std::int64_t unit) {
    const Task task = units[unit];
    const Descriptor& d = table[task];
    f(unit, d, patch_of(d, task));
  });
}

void decode_one_patch(const Described& format, const Descriptor& d, const Patch& p, DType values, Side side,
                      Decoding how) {
  if (values == DType::bf16) return decode_patch<bf16>(format, d, p, side, how);
  decode_patch<float>(format, d, p, side, how);
}

}  // namespace

void find_amax(Stream& stream, const Described& format, const TableView& table, Reading reading) {
  if (!format.tensor_amax()) return;
  each_patch(stream, "quantize: largest of patches", table, table.owned,
             [=](std::int64_t unit, const Descriptor& d, const Patch& p) {
               table.largest[0][unit] = patch_amaxes(format, d, p, reading, nullptr);
             });
  launch(stream, "quantize: amax of members", table.members.count, [=](std::int64_t unit) {
    const Task task = table.members[unit];
    const Descriptor& d = table[task];
    for (const Addresses& copy : d.side)
      if (copy.amax != nullptr) copy.amax[task.member] = host::largest_of_member(d, task.member, table.largest[0]);
  });
}

void make_copies(Stream& stream, const Described& format, const TableView& table, Reading reading) {
  each_patch(stream, "quantize", table, table.owned, [=](std::int64_t, const Descriptor& d, const Patch& p) {
    quantize_patch(format, d, p, reading);
  });
}

void decode(Stream& stream, const Described& format, const TableView& table, DType values, Side side, Decoding how) {
  each_patch(stream, "dequantize", table, table.all, [=](std::int64_t, const Descriptor& d, const Patch& p) {
    decode_one_patch(format, d, p, values, side, how);
  });
}

void decode_factors_apart(Stream& stream, const Described& format, const TableView& table, const Apart& copies,
                          Side side) {
  launch(stream, "dequantize", table.all.count, [=, &copies](std::int64_t unit) {
    const Task task = table.all[unit];
    const Descriptor d = member_apart(table.one, copies, side, task);
    decode_patch<bf16>(format, d, patch_of(d, {0, 0, task.row, task.column}), side, Decoding::factor);
  });
}

void find_block_amaxes(Stream& stream, const Described& format, const TableView& table, Reading reading,
                       const Amaxes& amaxes) {
  constexpr std::int64_t chunk = 4096;
  const std::int64_t n = amaxes.block_entries + amaxes.member_entries;
  launch(stream, "block_amax: clear", (n + chunk - 1) / chunk, [=](std::int64_t i) {
    std::fill(amaxes.blocks + i * chunk, amaxes.blocks + std::min(n, (i + 1) * chunk), std::uint16_t{0});
  });
  each_patch(stream, "block_amax", table, table.owned, [=](std::int64_t unit, const Descriptor& d, const Patch& p) {
    table.largest[0][unit] = patch_amaxes(format, d, p, reading, amaxes.blocks);
  });
  if (!format.tensor_amax()) return;
  launch(stream, "block_amax: members", table.members.count, [=](std::int64_t unit) {
    const Task task = table.members[unit];
    const Descriptor& d = table[task];
    amaxes.members()[d.first_member + task.member] =
        bf16(host::largest_of_member(d, task.member, table.largest[0])).bits;
  });
}

void cast_shards(Stream& stream, const Described& format, const TableView& table, Reading reading,
                 const Amaxes& amaxes) {
  launch(stream, "partial_cast", table.owned.count + table.all.count,
         [=](std::int64_t unit) { cast_unit(format, table, reading, amaxes, CastUnit(table, unit)); });
}

void derive_columnwise(Stream& stream, const Described& format, const TableView& table) {
  each_patch(stream, "build_columnwise", table, table.all, [=](std::int64_t, const Descriptor& d, const Patch& p) {
    const Blocks blocks(format, Side::rowwise, d, p);
    for (int block = 0; block < blocks.count && format.scaled(); ++block)
      if (const std::int64_t place = blocks.place(p.member, block); place >= 0) expand_scale(format, d, place);
    if (format.tensor_amax() && p.row == 0 && p.column == 0 && d.side[1].amax != nullptr && d.side[0].amax != nullptr)
      d.side[1].amax[p.member] = d.side[0].amax[p.member];
  });
}

}  // namespace tessera::quantizer::described
