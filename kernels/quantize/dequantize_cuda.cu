#include "kernels/quantize/back.hpp"
#include "kernels/quantize/codes.cuh"

namespace tessera::quantizer {
namespace device {
namespace {

// Decoding of a patch of one copy, in the order in which the copy is stored: lines of neighbouring elements.

__device__ inline void store_values(bf16* out, const float (&v)[run]) {
  *reinterpret_cast<uint4*>(out) = make_uint4(rounded_pair(v[0], v[1]), rounded_pair(v[2], v[3]),
                                              rounded_pair(v[4], v[5]), rounded_pair(v[6], v[7]));
}
__device__ inline void store_values(float* out, const float (&v)[run]) {
  reinterpret_cast<float4*>(out)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(out)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/// store() by a whole warp: two neighbouring lanes together write the run of one, then that of the other, so that whole
/// sectors are written.
__device__ inline void store_by_pairs(float* out, const float (&v)[run]) {
  const bool odd = threadIdx.x % 2 != 0;
  float other[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) other[i] = __shfl_xor_sync(whole_warp, odd ? v[i] : v[4 + i], 1);
  const float4 mine = odd ? make_float4(v[4], v[5], v[6], v[7]) : make_float4(v[0], v[1], v[2], v[3]);
  const float4 theirs = make_float4(other[0], other[1], other[2], other[3]);
  float4* const half = reinterpret_cast<float4*>(out) - (odd ? 1 : 0);
  half[0] = odd ? theirs : mine;
  half[2] = odd ? mine : theirs;
}

/// The factor of each element of a copy: its block's scale as decoding applies it.
template <Format F, Side side, Decoding how>
struct Steps {
  const Descriptor& d;
  const Patch& p;
  const typename F::Scale* scales;
  Matrix padded;
  float amax;  ///< of the tensor

  __device__ Steps(const Descriptor& entry, const Patch& patch)
      : d(entry), p(patch), padded(formats::padded_extent<F>(side, d.matrix)) {
    const void* const first = d.side[static_cast<int>(side)].scales;
    scales = static_cast<const typename F::Scale*>(first) + p.member * padded.elements();
    amax = formats::by_lines<F> ? 0.0f : amax_at<F>(side, d, p, 0, 0);
  }
  /// The factor of the element at (row, column) of the patch.
  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    const float most = formats::by_lines<F> ? amax_at<F>(side, d, p, row, column) : amax;
    if constexpr (!F::scaled) return applied({}, most);
    constexpr formats::Block b = formats::block_of<F>(side);
    constexpr formats::ScaleLayout layout = F::scale_layout(side);
    const auto scale = scales[scale_place<F>(side, padded, (p.row + row) / b.rows * layout.repeat.rows,
                                             (p.column + column) / b.columns * layout.repeat.columns)];
    return applied(scale, most);
  }

 private:
  __device__ static float applied(typename F::Scale scale, float most) {
    return how == Decoding::tensor ? F::step(scale, most) : F::factor_step(scale, most);
  }
};

/// A patch of a copy that is stored transposed, gathered in shared memory so that rows of the matrix are written whole,
/// sixteen bytes a thread. Units of eight values stand against bank conflicts: lanes that write together hold rows that
/// are eight apart.
struct TurnedBack {
  static constexpr int units = patch_edge / run;
  uint4 memory[patch_edge][units];
  __device__ uint4& unit(int row, int i) { return memory[row][i ^ row / run % units]; }

  /// Puts the thread's lines where they belong as columns; decode_line(r, v) gives line r.
  template <class Decode>
  __device__ void gather(const Seat& seat, const Decode& decode_line) {
#pragma unroll
    for (int half = 0; half < height; half += run) {
      std::uint32_t pair[run][run / 2];
#pragma unroll
      for (int r = 0; r < run; r += 2) {
        float even[run], odd[run];
        decode_line(half + r, even);
        decode_line(half + r + 1, odd);
#pragma unroll
        for (int c = 0; c < run; ++c) pair[c][r / 2] = rounded_pair(even[c], odd[c]);
      }
#pragma unroll
      for (int c = 0; c < run; ++c)
        unit(seat.column + c, (seat.row + half) / run) = make_uint4(pair[c][0], pair[c][1], pair[c][2], pair[c][3]);
    }
  }
};

__device__ inline void store_turned_back(const Descriptor& d, const Patch& p, TurnedBack& tile) {
  auto* const out = reinterpret_cast<std::uint16_t*>(d.values) + origin_of(d, p);
  const int i = static_cast<int>(threadIdx.x) % TurnedBack::units, n = p.columns - i * run;
  const bool vectors = aligned(out, 16) && d.matrix.columns % run == 0 && n >= run;
  for (int r = static_cast<int>(threadIdx.x) / TurnedBack::units; r < p.rows; r += threads / TurnedBack::units) {
    const uint4 unit = tile.unit(r, i);
    std::uint16_t* const to = out + r * d.matrix.columns + i * run;
    if (vectors) {
      *reinterpret_cast<uint4*>(to) = unit;
      continue;
    }
    const std::uint32_t pair[run / 2] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int c = 0; c < run; ++c)
      if (c < n) to[c] = static_cast<std::uint16_t>(pair[c / 2] >> (c % 2 * 16));
  }
}

/// What a thread can store at once: a run together with its neighbour's, its own run, or only the run's first values.
enum class Reach { warp, run, some };

template <class T>
__device__ void store_line(T* out, const float (&v)[run], int n, Reach reach) {
  if constexpr (std::is_same_v<T, float>)
    if (reach == Reach::warp) return store_by_pairs(out, v);
  if (reach != Reach::some) return store_values(out, v);
#pragma unroll
  for (int c = 0; c < run; ++c)
    if (c < n) out[c] = T(v[c]);
}

template <Format F, Side side, Decoding how, class T>
__device__ void decode_patch(const Descriptor& d, const Patch& p, [[maybe_unused]] TurnedBack* tile) {
  using Element = typename F::Element;
  constexpr bool turned = formats::order_of<F>(side) == formats::Order::transposed;
  constexpr formats::Block b = formats::block_of<F>(side);
  constexpr int along = turned ? b.rows : b.columns,
                across = turned ? b.columns : b.rows;  // extent of a block in the stored order
  static_assert(formats::is_plain<F> || along >= run || across >= height);
  const Seat seat;
  const int lines = turned ? p.columns : p.rows, length = turned ? p.rows : p.columns, n = length - seat.column;
  const std::int64_t width = turned ? d.matrix.rows : d.matrix.columns;
  const std::int64_t first = (turned ? turned_origin_of(d, p) : origin_of(d, p)) + seat.row * width + seat.column;
  if (n <= 0 || seat.row >= lines) return;
  const Steps<F, side, how> step(d, p);
  const auto step_at = [&](int line, int k) {
    return turned ? step(seat.column + k, seat.row + line) : step(seat.row + line, seat.column + k);
  };
  float steps[run];
  if constexpr (!formats::is_plain<F> && across >= height)
#pragma unroll
    for (int c = 0; c < run; ++c) steps[c] = along >= run && c > 0 ? steps[0] : c < n ? step_at(0, c) : 0.0f;
  T* out = reinterpret_cast<T*>(d.values) + first;
  const std::byte* from = d.side[static_cast<int>(side)].data + formats::data_bytes<F>(first);
  const bool vectors = n >= run && aligned(out, 16) && width * sizeof(T) % 16 == 0 &&
                       aligned(from, sizeof(Run<Element>)) && formats::data_bytes<F>(width) % sizeof(Run<Element>) == 0;
  [[maybe_unused]] const bool whole = vectors && lines == patch_edge && length == patch_edge;  // equal for all threads
  Run<Element> codes[height];
#pragma unroll
  for (int r = 0; r < height; ++r) {
    const std::byte* line = from + formats::data_bytes<F>(r * width);
    codes[r] = seat.row + r >= lines ? Run<Element>{} : vectors ? load_run<Element>(line) : load_some<Element>(line, n);
  }
  const auto decode_line = [&](int r, float(&v)[run]) {
    decode_run(Element(), codes[r], v);
    if constexpr (!formats::is_plain<F>) {
      const float of_line = across >= height || seat.row + r >= lines ? 0.0f : step_at(r, 0);
#pragma unroll
      for (int c = 0; c < run; ++c) v[c] *= across >= height ? steps[c] : of_line;
    }
  };
  if constexpr (turned && how == Decoding::factor) {
    tile->gather(seat, decode_line);
  } else {
#pragma unroll
    for (int r = 0; r < height; ++r) {
      if (seat.row + r >= lines) continue;
      float v[run];
      decode_line(r, v);
      store_line(out + r * width, v, n, vectors ? whole ? Reach::warp : Reach::run : Reach::some);
    }
  }
}

/// Decodes a patch with all threads of a block.
template <Format F, Side side, Decoding how, class T>
__device__ void decode_by_block(const Descriptor& d, const Patch& p) {
  if constexpr (how == Decoding::factor && formats::order_of<F>(side) == formats::Order::transposed) {
    __shared__ TurnedBack tile;
    decode_patch<F, side, how, T>(d, p, &tile);
    __syncthreads();
    store_turned_back(d, p, tile);
  } else {
    decode_patch<F, side, how, T>(d, p, nullptr);
  }
}

template <Format F, Side side, Decoding how, class T>
__global__ void __launch_bounds__(threads, 5) decode_kernel(const __grid_constant__ TableView table) {
  const Task task = table.all[blockIdx.x];
  const Descriptor& d = table[task];
  if (d.side[static_cast<int>(side)].data != nullptr) decode_by_block<F, side, how, T>(d, patch_of(d, task));
}

template <Format F, Side side>
__global__ void __launch_bounds__(threads, 5)
    decode_apart_kernel(const __grid_constant__ TableView table, const __grid_constant__ Apart copies) {
  const Task task = table.all[blockIdx.x];
  const Descriptor d = member_apart(table.one, copies, side, task);
  decode_by_block<F, side, Decoding::factor, bf16>(d, patch_of(d, {0, 0, task.row, task.column}));
}

template <Side side, Decoding how, class T>
void decode_as(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() { start(stream, decode_kernel<F, side, how, T>, table.all.count, table); });
}
template <Decoding how, class T>
void decode_side(Stream& stream, FormatId format, const TableView& table, Side side) {
  if (side == Side::rowwise) return decode_as<Side::rowwise, how, T>(stream, format, table);
  decode_as<Side::columnwise, how, T>(stream, format, table);
}

}  // namespace
}  // namespace device

void decode_factors_apart(Stream& stream, FormatId format, const TableView& table, const Apart& copies, Side side) {
  visit_format(format, [&]<class F>() {
    using namespace device;
    if (side == Side::rowwise)
      return start(stream, decode_apart_kernel<F, Side::rowwise>, table.all.count, table, copies);
    start(stream, decode_apart_kernel<F, Side::columnwise>, table.all.count, table, copies);
  });
}

void decode(Stream& stream, FormatId format, const TableView& table, DType values, Side side, Decoding how) {
  const bool narrow = values == DType::bf16;
  if (how == Decoding::tensor)
    return narrow ? device::decode_side<Decoding::tensor, bf16>(stream, format, table, side)
                  : device::decode_side<Decoding::tensor, float>(stream, format, table, side);
  device::decode_side<Decoding::factor, bf16>(stream, format, table, side);
}

}  // namespace tessera::quantizer
