#pragma once
#include "kernels/base/cuda.cuh"
#include "kernels/base/stream.hpp"
#include "kernels/quantize/source.hpp"

/// A patch in the registers of one block of threads. A thread holds sixteen rows of eight columns: 16 bytes of bf16 per
/// row, adjacent to those of neighbouring lanes, and whole columns of sixteen. So most maxima need at most one shuffle.
namespace tessera::quantizer::device {

using formats::Format;

inline constexpr int threads = 128, run = 8, height = 16;
inline constexpr unsigned whole_warp = 0xFFFFFFFFu;

/// Where a thread's part of an area begins. A warp covers 32 rows of 128 columns; warps stand below one another, or
/// side by side if the area is a band.
struct Seat {
  int row, column;
  __device__ Seat(int first_row, int first_column) : row(first_row), column(first_column) {}
  __device__ explicit Seat(Area area = one_patch) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto across = static_cast<unsigned>(area.columns / patch_edge);
    row = static_cast<int>((warp / across * 2 + lane / 16) * height);
    column = static_cast<int>((warp % across * 16 + lane % 16) * run);
  }
};
constexpr int threads_of(Area area) { return area.rows * area.columns / (height * run); }

/// Loads the descriptor of a block's task into shared memory in one access; field by field each load would cost its own
/// latency.
__device__ inline const Descriptor& fetch(const TableView& table, const Task& task, Descriptor& shared) {
  static_assert(sizeof(Descriptor) % sizeof(std::uint64_t) == 0 &&
                sizeof(Descriptor) / sizeof(std::uint64_t) <= threads);
  constexpr unsigned words = sizeof(Descriptor) / sizeof(std::uint64_t);
  if (threadIdx.x < words) {
    const unsigned i = threadIdx.x;
    reinterpret_cast<std::uint64_t*>(&shared)[i] =
        table.items != nullptr ? __ldg(reinterpret_cast<const unsigned long long*>(table.items + task.entry) + i)
                               : reinterpret_cast<const unsigned long long*>(&table.one)[i];
  }
  __syncthreads();
  return shared;
}

/// Position of a patch's first element, counted through all members.
__device__ inline std::int64_t origin_of(const Descriptor& d, const Patch& p) {
  return p.member * d.stride + p.row * d.matrix.columns + p.column;
}
/// origin_of() in a copy that is stored transposed.
__device__ inline std::int64_t turned_origin_of(const Descriptor& d, const Patch& p) {
  return p.member * d.stride + p.column * d.matrix.rows + p.row;
}

__device__ inline bool aligned(const void* p, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

// ---- memory: read once, written once

/// Cache policy evict-first, for all loads and stores, scales included: with any other, finished lines would evict
/// lines that are still being filled.
__device__ inline std::uint64_t leave_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(leave_first()));
  return v;
}
/// The same, of which none is delayed beyond a barrier: compilers move the others between what is computed from them.
__device__ inline uint4 load_in_order(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(leave_first())
               : "memory");
  return v;
}
__device__ inline uint2 load_once(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0,%1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p), "l"(leave_first()));
  return v;
}

__device__ inline void store_once(void* p, const std::uint32_t (&words)[1]) {
  __stcs(static_cast<std::uint32_t*>(p), words[0]);
}
__device__ inline void store_once(void* p, const std::uint32_t (&words)[2]) {
  __stcs(static_cast<uint2*>(p), make_uint2(words[0], words[1]));
}
__device__ inline void store_once(void* p, const std::uint32_t (&words)[4]) {
  __stcs(static_cast<uint4*>(p), make_uint4(words[0], words[1], words[2], words[3]));
}

// ---- two bf16 in a word

/// The larger magnitude in each half of two words; a NaN loses against any number. Signs of the result mean nothing.
__device__ inline std::uint32_t larger_pair(std::uint32_t a, std::uint32_t b) {
  std::uint32_t most;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  return most;
}
/// The halves' magnitudes as fp32 bits; the larger of two NaN counts as 0.
__device__ inline std::uint32_t low_magnitude(std::uint32_t pair) { return larger_pair(pair, 0) << 16 & 0x7FFF0000u; }
__device__ inline std::uint32_t high_magnitude(std::uint32_t pair) { return larger_pair(pair, 0) & 0x7FFF0000u; }
/// Two fp32 numbers rounded to bf16, the first in the low half. The payload of a NaN changes.
__device__ inline std::uint32_t rounded_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float low_of(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/// Whether every element of the patch lies in the matrix and is owned.
__device__ inline bool owned_whole(const Descriptor& d, const Patch& p) {
  const std::int64_t first = p.row * d.matrix.columns + p.column,
                     end = first + (patch_edge - 1) * d.matrix.columns + patch_edge;
  return p.rows == patch_edge && p.columns == patch_edge && p.low <= first && p.high >= end;
}

/// Whether a patch has all of its rows, and every element of them is owned.
__device__ inline bool owned_rows_whole(const Descriptor& d, const Patch& p) {
  const std::int64_t first = p.row * d.matrix.columns + p.column,
                     end = first + (patch_edge - 1) * d.matrix.columns + p.columns;
  return p.rows == patch_edge && p.low <= first && p.high >= end;
}

/// Extents say which elements of a patch exist and are owned: of each row, columns [first, end) of the patch.
struct Whole {
  static constexpr bool all = true;
  static constexpr int columns = patch_edge;
  __device__ bool holds(const Seat&) const { return true; }
  __device__ int first(int) const { return 0; }
  __device__ int end(int) const { return patch_edge; }
};
/// Extent of a patch with all rows and a multiple of eight columns.
struct WholeRows {
  static constexpr bool all = true;
  int columns;
  __device__ bool holds(const Seat& seat) const { return seat.column < columns; }
};
/// Extent of the owned elements of a ragged patch, or of one whose rows do not begin at multiples of 16 bytes.
struct Part {
  static constexpr bool all = false;
  const Patch& patch;
  std::int64_t width;
  bool vectors;
  __device__ int first(int r) const { return r < patch.rows ? patch.first_owned(r, width) : patch_edge; }
  __device__ int end(int r) const { return r < patch.rows ? patch.end_owned(r, width) : 0; }
};

/// A thread's values as bf16: sixteen rows of eight.
struct Pairs {
  static constexpr bool narrow = true;
  std::uint32_t pair[height][run / 2];
  __device__ float value(int r, int c) const { return c % 2 == 0 ? low_of(pair[r][c / 2]) : high_of(pair[r][c / 2]); }
  __device__ void put(int r, const float (&x)[run]) {
#pragma unroll
    for (int i = 0; i < run / 2; ++i) pair[r][i] = rounded_pair(x[2 * i], x[2 * i + 1]);
  }
};
/// A thread's values as fp32: sixteen rows of eight.
struct Floats {
  static constexpr bool narrow = false;
  float x[height][run];
  __device__ float value(int r, int c) const { return x[r][c]; }
  __device__ void put(int r, const float (&v)[run]) {
#pragma unroll
    for (int c = 0; c < run; ++c) x[r][c] = v[c];
  }
};
template <class Source>
using Held = std::conditional_t<std::is_same_v<Source, FromFp32>, Floats, Pairs>;

/// Loads eight fp32 values from a multiple of 16 bytes.
__device__ inline void load_floats(const float* x, float (&v)[run]) {
  const uint4 a = load_once(reinterpret_cast<const uint4*>(x)), b = load_once(reinterpret_cast<const uint4*>(x) + 1);
  const std::uint32_t bits[run] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int c = 0; c < run; ++c) v[c] = __uint_as_float(bits[c]);
}

/// Loads eight values of a row, all of them owned, from a multiple of 16 bytes.
template <class Source>
__device__ void load_run(const typename Source::Stored* x, int r, Held<Source>& held) {
  if constexpr (std::is_base_of_v<FromBf16, Source>) {
    const auto* const from = reinterpret_cast<const uint4*>(x);
    const uint4 v = Computed<Source> ? load_in_order(from) : load_once(from);
    held.pair[r][0] = v.x, held.pair[r][1] = v.y, held.pair[r][2] = v.z, held.pair[r][3] = v.w;
  } else {
    float v[run];
    load_floats(x, v);
    held.put(r, v);
  }
}

/// Loads row r of the thread's part of a patch that begins at `x`; elements outside the extent are zero.
template <class Source, class Extent>
__device__ void load_row(const typename Source::Stored* x, std::int64_t width, const Seat& seat, const Extent& extent,
                         int r, Held<Source>& held) {
  const auto* row = x + (seat.row + r) * width + seat.column;
  if constexpr (Extent::all) {
    load_run<Source>(row, r, held);
  } else {
    const int first = extent.first(seat.row + r) - seat.column, end = extent.end(seat.row + r) - seat.column;
    if (extent.vectors && first <= 0 && end >= run) {
      load_run<Source>(row, r, held);
    } else {
      float v[run];
#pragma unroll
      for (int c = 0; c < run; ++c) v[c] = c >= first && c < end ? Source::value(row[c]) : 0.0f;
      held.put(r, v);
    }
  }
}

/// Loads the thread's part of a patch.
template <class Source, class Extent>
__device__ Held<Source> load(const typename Source::Stored* x, std::int64_t width, const Seat& seat,
                             const Extent& extent) {
  Held<Source> held{};
  if constexpr (Extent::all) {
    if (!extent.holds(seat)) return held;
  }
#pragma unroll
  for (int r = 0; r < height; ++r) load_row<Source>(x, width, seat, extent, r, held);
  return held;
}

// ---- largest magnitudes

__device__ inline std::uint32_t shuffled_larger(std::uint32_t bits, int lanes) {
  return larger(bits, __shfl_xor_sync(whole_warp, bits, lanes));
}
/// The largest word among lanes [0, lanes) of each group of lanes; all of them get it.
template <int lanes>
__device__ std::uint32_t largest_across(std::uint32_t bits) {
#pragma unroll
  for (int step = 1; step < lanes; step *= 2) bits = shuffled_larger(bits, step);
  return bits;
}

/// Largest magnitude of all the thread's values.
__device__ inline std::uint32_t largest(const Pairs& x) {
  std::uint32_t top = 0;
#pragma unroll
  for (int r = 0; r < height; ++r)
#pragma unroll
    for (int i = 0; i < run / 2; ++i) top = larger_pair(top, x.pair[r][i]);
  return larger(low_magnitude(top), high_magnitude(top));
}
__device__ inline std::uint32_t largest(const Floats& x) {
  std::uint32_t top = 0;
#pragma unroll
  for (int r = 0; r < height; ++r)
#pragma unroll
    for (int c = 0; c < run; ++c) top = larger(top, magnitude(x.x[r][c]));
  return top;
}

/// The largest magnitude in each half of all the thread's words; NaN if one is.
__device__ inline std::uint32_t largest_or_nan(const Pairs& x) {
  std::uint32_t most = 0;
#pragma unroll
  for (int r = 0; r < height; ++r)
#pragma unroll
    for (int i = 0; i < run / 2; ++i) asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(x.pair[r][i]));
  return most & 0x7FFF7FFFu;
}
/// Whether one of the thread's values is NaN or infinite.
__device__ inline bool not_finite(const Pairs& x) {
  // Adding one to an exponent carries into the sign only if all its bits are ones.
  return ((largest_or_nan(x) + 0x00800080u) & 0x80008000u) != 0;
}

/// Whether one of the thread's values is NaN.
__device__ inline bool holds_nan(const Pairs& x) {
  const std::uint32_t most = largest_or_nan(x);
  return larger(most << 16, most & 0xFFFF0000u) > 0x7F800000u;
}

/// Replaces NaN by infinity, which has the same code in formats without NaN and infinity. Returns the largest magnitude
/// before.
__device__ inline std::uint32_t largest_without_nan(Pairs& x) {
  const std::uint32_t most = largest_or_nan(x);
  const std::uint32_t top = larger(most << 16, most & 0xFFFF0000u);
  if (top <= 0x7F800000u) return top;
  const std::uint32_t number = largest(x);
#pragma unroll
  for (int r = 0; r < height; ++r)
#pragma unroll
    for (int i = 0; i < run / 2; ++i) {
      const std::uint32_t low = x.pair[r][i] & 0xFFFFu, high = x.pair[r][i] >> 16;
      x.pair[r][i] = ((low & 0x7FFFu) > 0x7F80u ? 0x7F80u : low) | ((high & 0x7FFFu) > 0x7F80u ? 0x7F80u : high) << 16;
    }
  return number;
}
__device__ inline std::uint32_t largest_without_nan(Floats& x) { return largest(x); }

/// Largest magnitudes of rows r and r + 1 over `lanes` neighbouring lanes.
template <int lanes>
__device__ void largest_of_rows(const Pairs& x, int r, std::uint32_t (&top)[2]) {
  std::uint32_t of[2];
#pragma unroll
  for (int k = 0; k < 2; ++k)
    of[k] =
        larger_pair(larger_pair(x.pair[r + k][0], x.pair[r + k][1]), larger_pair(x.pair[r + k][2], x.pair[r + k][3]));
  // Row r goes into the low half, row r + 1 into the high half.
  std::uint32_t both = larger_pair(__byte_perm(of[0], of[1], 0x5410), __byte_perm(of[0], of[1], 0x7632));
#pragma unroll
  for (int step = 1; step < lanes; step *= 2) both = larger_pair(both, __shfl_xor_sync(whole_warp, both, step));
  top[0] = low_magnitude(both);
  top[1] = high_magnitude(both);
}
template <int lanes>
__device__ void largest_of_rows(const Floats& x, int r, std::uint32_t (&top)[2]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    top[k] = 0;
#pragma unroll
    for (int c = 0; c < run; ++c) top[k] = larger(top[k], magnitude(x.x[r + k][c]));
    top[k] = largest_across<lanes>(top[k]);
  }
}

/// Largest magnitude of each column over the thread's sixteen rows.
__device__ inline void largest_of_columns(const Pairs& x, std::uint32_t (&top)[run]) {
#pragma unroll
  for (int i = 0; i < run / 2; ++i) {
    std::uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < height; ++r) most = larger_pair(most, x.pair[r][i]);
    top[2 * i] = low_magnitude(most);
    top[2 * i + 1] = high_magnitude(most);
  }
}
__device__ inline void largest_of_columns(const Floats& x, std::uint32_t (&top)[run]) {
#pragma unroll
  for (int c = 0; c < run; ++c) {
    top[c] = 0;
#pragma unroll
    for (int r = 0; r < height; ++r) top[c] = larger(top[c], magnitude(x.x[r][c]));
  }
}

/// The largest word over a whole block of `team` threads. `warps`: shared memory, one word per warp.
template <int team = threads>
__device__ std::uint32_t largest_of_block(std::uint32_t bits, std::uint32_t* warps) {
  bits = __reduce_max_sync(whole_warp, bits);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = bits;
  __syncthreads();
  std::uint32_t top = warps[0];
#pragma unroll
  for (int w = 1; w < team / 32; ++w) top = larger(top, warps[w]);
  return top;
}

/// Threads that reduce one member's patches, of which there may be thousands.
inline constexpr int member_threads = 512;

/// Largest magnitude in the thread's share of a member's owned patches; `of_patches` has one entry per unit.
__device__ inline std::uint32_t largest_of_patches(const Descriptor& d, std::int64_t member, const float* of_patches) {
  const UnitRange range = owned_patches(d, member);
  std::uint32_t top = 0;
#pragma unroll 8
  for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += blockDim.x)
    top = larger(top, __float_as_uint(of_patches[i]));
  return top;
}

/// Spreads blocks of threads that write scales evenly among those that move data: the first wait for latency, the
/// second for bandwidth.
struct Mixed {
  unsigned scales, step;
  Mixed(std::int64_t of_data, std::int64_t of_scales)
      : scales(static_cast<unsigned>(of_scales)),
        step(of_scales > 0 ? static_cast<unsigned>((of_data + of_scales) / of_scales) : 1) {}
  __device__ bool of_scales(unsigned block) const { return block % step == 0 && block / step < scales; }
  /// Number of `block` among the blocks of its kind.
  __device__ unsigned place(unsigned block) const {
    if (of_scales(block)) return block / step;
    const unsigned before = block / step + 1;
    return block - (before < scales ? before : scales);
  }
};

/// When a kernel may begin. After its predecessor on the stream has ended (in_turn), or as soon as that one calls
/// let_next_begin() (early), which hides the latency of a launch. Every block of an early kernel passes
/// await_previous() before it reads or writes what any kernel writes. It so ends after its predecessors, and later
/// launches need no care.
enum class Begins { in_turn, early };
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ inline void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Launches `kernel` on the stream with `blocks` blocks of `team` threads, and counts it as launch() does.
/// `shared_bytes`: dynamic shared memory.
template <int team = threads, Begins begins = Begins::in_turn, int shared_bytes = 0, class... Parameters,
          class... Arguments>
void start(Stream& stream, void (*kernel)(Parameters...), std::int64_t blocks, const Arguments&... arguments) {
  stream.count_launch();
  if (stream.dry() || blocks <= 0) return;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = begins == Begins::early;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(team);
  launch.dynamicSmemBytes = shared_bytes;
  launch.stream = static_cast<cudaStream_t>(stream.native());
  launch.attrs = &early;
  launch.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&launch, kernel, arguments...), "quantize");
}

}  // namespace tessera::quantizer::device
