#include "kernels/quantize/described_back.hpp"
#include "kernels/quantize/patch.cuh"

/// A block of 128 threads works on a patch; a thread has a column of it.
namespace tessera::quantizer::described {
namespace {

constexpr int edge = patch_edge;

/// Magnitudes of a patch's blocks, in whose place their multipliers, or steps, come.
struct Shared {
  std::uint32_t top[Blocks::most];

  __device__ float number(int block) const { return __uint_as_float(top[block]); }
  __device__ void put(int block, float number) { top[block] = __float_as_uint(number); }
  /// Calls f(block) for all blocks, and waits.
  template <class F>
  __device__ void each(const Blocks& blocks, const F& f) {
    for (int block = static_cast<int>(threadIdx.x); block < blocks.count; block += edge) f(block);
    __syncthreads();
  }
};

/// Raises a block's magnitude by those of the lanes that share it.
__device__ void raise(Shared& shared, const Blocks& blocks, int block, std::uint32_t magnitude) {
  const int lanes = blocks.column_shift < 5 ? 1 << blocks.column_shift : 32;
  for (int step = 1; step < lanes; step *= 2) magnitude = device::shuffled_larger(magnitude, step);
  if (static_cast<int>(threadIdx.x) % lanes == 0 && magnitude != 0) atomicMax(&shared.top[block], magnitude);
}

/// shared.top = the magnitudes of blocks over owned values. Returns whether one of the thread's is not finite.
__device__ bool find_tops(const Descriptor& d, const Patch& p, Reading reading, const Blocks& blocks, Shared& shared) {
  shared.each(blocks, [&](int block) { shared.top[block] = 0; });
  const int column = static_cast<int>(threadIdx.x), height = 1 << blocks.row_shift;
  bool wild = false;
  for (int first = 0; first < p.rows; first += height) {
    std::uint32_t most = 0;
    for (int r = first; r < first + height && r < p.rows; ++r) {
      if (!owns(d, p, r, column)) continue;
      const float x = value_at(d, reading, position_of(d, p, r, column));
      wild = wild || (__float_as_uint(x) & 0x7F800000u) == 0x7F800000u;
      most = larger(most, magnitude(x));
    }
    raise(shared, blocks, blocks.of(first, column), most);
  }
  __syncthreads();
  return wild;
}

/// Stores the codes of owned elements from the blocks' multipliers.
__device__ void store_codes(const Described& format, const Descriptor& d, const Patch& p, Reading reading,
                            const Blocks& blocks, const Shared& shared, std::byte* data) {
  if (data == nullptr) return;
  const int column = static_cast<int>(threadIdx.x);
  for (int r = 0; r < p.rows; ++r) {
    if (!owns(d, p, r, column)) continue;
    const std::int64_t at = position_of(d, p, r, column);
    const float x = value_at(d, reading, at) * shared.number(blocks.of(r, column));
    reinterpret_cast<std::uint8_t*>(data)[at] = static_cast<std::uint8_t>(format.element.encode(x));
  }
}

/// Quantizes the blocks of one side; both sides' copies where they share them.
__device__ void quantize_side(const Described& format, const Descriptor& d, const Patch& p, Reading reading, Side side,
                              Shared& shared) {
  const Addresses& copy = d.side[static_cast<int>(side)];
  const bool together = format.columnwise() == formats::Columnwise::shared;
  if (!together && copy.data == nullptr && copy.scales == nullptr) return;
  const Blocks blocks(format, side, d, p);
  const bool wild = find_tops(d, p, reading, blocks, shared);
  if (wild && d.not_finite != nullptr && reading == Reading::bf16) *d.not_finite = 1;
  const TensorScale tensor = tensor_scale_of(format, together && copy.amax == nullptr ? d.side[1] : copy, p.member);
  shared.each(blocks, [&](int block) {
    const auto encoding = format.encoding(shared.number(block), tensor);
    shared.put(block, encoding.multiplier);
    const std::int64_t place = blocks.place(p.member, block);
    if (!format.scaled() || place < 0 || !blocks.owned(d, p, block)) return;
    if (together)
      store_shared_scale(format, d, place, encoding.scale);
    else
      store_scale(format, copy.scales, place, encoding.scale);
  });
  store_codes(format, d, p, reading, blocks, shared,
              together && copy.data == nullptr ? d.side[1].data : copy.data);
  __syncthreads();
}

__global__ void __launch_bounds__(edge)
    copies_kernel(const __grid_constant__ Described format, const __grid_constant__ TableView table, Reading reading) {
  __shared__ Shared shared;
  const Task task = table.owned[blockIdx.x];
  const Descriptor& d = table[task];
  const Patch p = patch_of(d, task);
  if (p.rows == 0) return;
  quantize_side(format, d, p, reading, Side::rowwise, shared);
  if (format.columnwise() != formats::Columnwise::shared)
    quantize_side(format, d, p, reading, Side::columnwise, shared);
}

/// Amaxes of a patch's blocks, where ranks agree on them, and the largest.
__global__ void __launch_bounds__(edge)
    amax_kernel(const __grid_constant__ Described format, const __grid_constant__ TableView table, Reading reading,
                std::uint16_t* amaxes) {
  __shared__ Shared shared;
  __shared__ std::uint32_t largest;
  const Task task = table.owned[blockIdx.x];
  const Descriptor& d = table[task];
  if (threadIdx.x == 0) largest = 0;
  const Patch p = patch_of(d, task);
  const Blocks blocks(format, Side::rowwise, d, p);
  find_tops(d, p, reading, blocks, shared);
  shared.each(blocks, [&](int block) {
    atomicMax(&largest, shared.top[block]);
    const std::int64_t place = blocks.place(p.member, block);
    if (place >= 0 && amaxes != nullptr)
      amaxes[d.first_block + place] = static_cast<std::uint16_t>(shared.top[block] >> 16);
  });
  if (threadIdx.x == 0) table.largest[0][blockIdx.x] = largest_of(largest);
}

/// The largest of each member's patches: to its copies, or among agreed amaxes.
__global__ void __launch_bounds__(edge)
    members_kernel(const __grid_constant__ TableView table, std::uint16_t* amaxes) {
  __shared__ std::uint32_t largest;
  const Task task = table.members[blockIdx.x];
  const Descriptor& d = table[task];
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const UnitRange range = owned_patches(d, task.member);
  std::uint32_t most = 0;
  for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += edge)
    most = larger(most, __float_as_uint(table.largest[0][i]));
  atomicMax(&largest, most);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (amaxes != nullptr) {
    amaxes[d.first_member + task.member] = static_cast<std::uint16_t>(largest >> 16);
    return;
  }
  for (const Addresses& copy : d.side)
    if (copy.amax != nullptr) copy.amax[task.member] = largest_of(largest);
}

__global__ void __launch_bounds__(edge)
    cast_kernel(const __grid_constant__ Described format, const __grid_constant__ TableView table, Reading reading,
                const Amaxes amaxes) {
  __shared__ Shared shared;
  const CastUnit unit(table, blockIdx.x);
  const Descriptor& d = table[unit.task];
  const Patch p = patch_of(d, unit.task);
  const TensorScale tensor = agreed_scale_of(format, d, p, amaxes, !unit.data && threadIdx.x == 0);
  const Blocks blocks(format, Side::rowwise, d, p);
  shared.each(blocks, [&](int block) {
    const std::int64_t place = blocks.place(p.member, block);
    const auto encoding = agreed_encoding(format, d, amaxes, tensor, place);
    shared.put(block, encoding.multiplier);
    const bool stored = format.scaled() && place >= 0 && (d.block_scales == nullptr || blocks.owned(d, p, block));
    if (!unit.data && stored) store_shared_scale(format, d, place, encoding.scale);
  });
  if (unit.data) store_codes(format, d, p, reading, blocks, shared, d.side[0].data);
}

template <class T>
__device__ void decode_patch(const Described& format, const Descriptor& d, const Patch& p, Side side, Decoding how,
                             Shared& shared) {
  const Addresses& copy = d.side[static_cast<int>(side)];
  if (copy.data == nullptr) return;
  const Blocks blocks(format, side, d, p);
  const float amax = copy.amax != nullptr ? copy.amax[p.member] : 0.0f;
  shared.each(blocks, [&](int block) {
    const std::int64_t place = blocks.place(p.member, block);
    if (place < 0) return;
    const Described::Scale scale = format.scaled() ? load_scale(format, copy.scales, place) : 0;
    shared.put(block, how == Decoding::tensor ? format.step(scale, amax) : format.factor_step(scale, amax));
  });
  const int column = static_cast<int>(threadIdx.x);
  if (column >= p.columns) return;
  for (int r = 0; r < p.rows; ++r) {
    const std::int64_t at = position_of(d, p, r, column);
    const std::uint32_t code = reinterpret_cast<const std::uint8_t*>(copy.data)[at];
    const float x = shared.number(blocks.of(r, column)) * format.element.decode(code);
    if constexpr (std::is_same_v<T, bf16>)
      reinterpret_cast<bf16*>(d.values)[at] = bf16(x);
    else
      reinterpret_cast<float*>(d.values)[at] = x;
  }
}

template <class T>
__global__ void __launch_bounds__(edge)
    decode_kernel(const __grid_constant__ Described format, const __grid_constant__ TableView table, Side side,
                  Decoding how) {
  __shared__ Shared shared;
  const Task task = table.all[blockIdx.x];
  const Descriptor& d = table[task];
  decode_patch<T>(format, d, patch_of(d, task), side, how, shared);
}

__global__ void __launch_bounds__(edge)
    decode_apart_kernel(const __grid_constant__ Described format, const __grid_constant__ TableView table,
                        const __grid_constant__ Apart copies, Side side) {
  __shared__ Shared shared;
  const Task task = table.all[blockIdx.x];
  const Descriptor d = member_apart(table.one, copies, side, task);
  decode_patch<bf16>(format, d, patch_of(d, {0, 0, task.row, task.column}), side, Decoding::factor, shared);
}

__global__ void __launch_bounds__(edge)
    columnwise_kernel(const __grid_constant__ Described format, const __grid_constant__ TableView table) {
  const Task task = table.all[blockIdx.x];
  const Descriptor& d = table[task];
  const Patch p = patch_of(d, task);
  const Blocks blocks(format, Side::rowwise, d, p);
  for (int block = static_cast<int>(threadIdx.x); block < blocks.count && format.scaled(); block += edge)
    if (const std::int64_t place = blocks.place(p.member, block); place >= 0) expand_scale(format, d, place);
  if (threadIdx.x == 0 && format.tensor_amax() && p.row == 0 && p.column == 0 && d.side[1].amax != nullptr &&
      d.side[0].amax != nullptr)
    d.side[1].amax[p.member] = d.side[0].amax[p.member];
}

}  // namespace

void find_amax(Stream& stream, const Described& format, const TableView& table, Reading reading) {
  if (!format.tensor_amax()) return;
  std::uint16_t* const none = nullptr;
  device::start<edge>(stream, amax_kernel, table.owned.count, format, table, reading, none);
  device::start<edge>(stream, members_kernel, table.members.count, table, none);
}

void make_copies(Stream& stream, const Described& format, const TableView& table, Reading reading) {
  device::start<edge>(stream, copies_kernel, table.owned.count, format, table, reading);
}

void decode(Stream& stream, const Described& format, const TableView& table, DType values, Side side, Decoding how) {
  if (values == DType::bf16)
    device::start<edge>(stream, decode_kernel<bf16>, table.all.count, format, table, side, how);
  else
    device::start<edge>(stream, decode_kernel<float>, table.all.count, format, table, side, how);
}

void decode_factors_apart(Stream& stream, const Described& format, const TableView& table, const Apart& copies,
                          Side side) {
  device::start<edge>(stream, decode_apart_kernel, table.all.count, format, table, copies, side);
}

void find_block_amaxes(Stream& stream, const Described& format, const TableView& table, Reading reading,
                       const Amaxes& amaxes) {
  stream.count_launch();
  const auto entries = static_cast<std::size_t>(amaxes.block_entries + amaxes.member_entries);
  if (!stream.dry() && entries > 0)
    check_cuda(cudaMemsetAsync(amaxes.blocks, 0, entries * sizeof(std::uint16_t),
                               static_cast<cudaStream_t>(stream.native())),
               "quantize");
  std::uint16_t* const of_blocks = formats::agrees_on_blocks(format.agreement()) ? amaxes.blocks : nullptr;
  device::start<edge>(stream, amax_kernel, table.owned.count, format, table, reading, of_blocks);
  if (format.tensor_amax())
    device::start<edge>(stream, members_kernel, table.members.count, table, amaxes.members());
}

void cast_shards(Stream& stream, const Described& format, const TableView& table, Reading reading,
                 const Amaxes& amaxes) {
  device::start<edge>(stream, cast_kernel, table.owned.count + table.all.count, format, table, reading, amaxes);
}

void derive_columnwise(Stream& stream, const Described& format, const TableView& table) {
  device::start<edge>(stream, columnwise_kernel, table.all.count, format, table);
}

}  // namespace tessera::quantizer::described
