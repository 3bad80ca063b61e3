#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/quantize/source.hpp"

/// A patch in the registers of one block of threads. A thread holds sixteen rows of eight columns: 16 bytes of bf16 a
/// row, which neighbouring lanes continue, and whole columns of sixteen, so that most maxima need a shuffle or none.
namespace tessera::quantizer::device {

using formats::Format;

inline constexpr int threads = 128, run = 8, height = 16;
inline constexpr unsigned whole_warp = 0xFFFFFFFFu;

/// Where a thread's part of an area begins. A warp has 32 rows of 128 columns; warps stand below one another, or side
/// by side where the area is a band.
struct Seat {
  int row, column;
  __device__ Seat(int first_row, int first_column) : row(first_row), column(first_column) {}
  __device__ explicit Seat(Area area = one_patch) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int across = area.columns / patch_edge;
    row = (warp / across * 2 + lane / 16) * height;
    column = (warp % across * 16 + lane % 16) * run;
  }
};
constexpr int threads_of(Area area) { return area.rows * area.columns / (height * run); }

/// Loads the descriptor of a block's task in one access, into shared memory: field by field is one latency each.
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

/// Position of a patch's first element among those of all members.
__device__ inline std::int64_t origin_of(const Descriptor& d, const Patch& p) {
  return p.member * d.stride + p.row * d.matrix.columns + p.column;
}
/// The same in a copy that is stored transposed.
__device__ inline std::int64_t turned_origin_of(const Descriptor& d, const Patch& p) {
  return p.member * d.stride + p.column * d.matrix.rows + p.row;
}

__device__ inline bool aligned(const void* p, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

// ---- memory: read once, written once

/// Cache hint evict-first on all loads and stores, scales included: with any other, lines that are done would evict
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

/// The larger magnitudes of each half, a NaN losing against any number. The signs mean nothing.
__device__ inline std::uint32_t larger_pair(std::uint32_t a, std::uint32_t b) {
  std::uint32_t most;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  return most;
}
/// The halves' magnitudes as fp32 bits; what two NaN leave counts as 0.
__device__ inline std::uint32_t low_magnitude(std::uint32_t pair) { return larger_pair(pair, 0) << 16 & 0x7FFF0000u; }
__device__ inline std::uint32_t high_magnitude(std::uint32_t pair) { return larger_pair(pair, 0) & 0x7FFF0000u; }
/// Two fp32 rounded to bf16, the first low. NaN becomes another NaN.
__device__ inline std::uint32_t rounded_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float low_of(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/// Every element of the patch is there and owned.
__device__ inline bool owned_whole(const Descriptor& d, const Patch& p) {
  const std::int64_t first = p.row * d.matrix.columns + p.column,
                     end = first + (patch_edge - 1) * d.matrix.columns + patch_edge;
  return p.rows == patch_edge && p.columns == patch_edge && p.low <= first && p.high >= end;
}

/// Which elements of a patch are there to be read and written: of each row, columns [first, end) of the patch.
struct Whole {
  static constexpr bool all = true;
  __device__ bool holds(const Seat&) const { return true; }
  __device__ int first(int) const { return 0; }
  __device__ int end(int) const { return patch_edge; }
};
/// All rows, and as many columns as there are: whole runs.
struct WholeRows {
  static constexpr bool all = true;
  int columns;
  __device__ bool holds(const Seat& seat) const { return seat.column < columns; }
};
/// Owned elements of a ragged patch, or of one whose rows do not begin at multiples of 16 bytes.
struct Part {
  static constexpr bool all = false;
  const Patch& patch;
  std::int64_t width;
  bool vectors;
  __device__ int first(int r) const { return r < patch.rows ? patch.first_owned(r, width) : patch_edge; }
  __device__ int end(int r) const { return r < patch.rows ? patch.end_owned(r, width) : 0; }
};

/// Sixteen rows of eight values that are bf16.
struct Pairs {
  static constexpr bool narrow = true;
  std::uint32_t pair[height][run / 2];
  __device__ float value(int r, int c) const { return c % 2 == 0 ? low_of(pair[r][c / 2]) : high_of(pair[r][c / 2]); }
  __device__ void put(int r, const float (&x)[run]) {
#pragma unroll
    for (int i = 0; i < run / 2; ++i) pair[r][i] = rounded_pair(x[2 * i], x[2 * i + 1]);
  }
};
/// The same of fp32.
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

/// Eight fp32 that are 16-byte aligned.
__device__ inline void load_floats(const float* x, float (&v)[run]) {
  const uint4 a = load_once(reinterpret_cast<const uint4*>(x)), b = load_once(reinterpret_cast<const uint4*>(x) + 1);
  const std::uint32_t bits[run] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int c = 0; c < run; ++c) v[c] = __uint_as_float(bits[c]);
}

/// Eight values of a row, all of them there and 16-byte aligned.
template <class Source>
__device__ void load_run(const typename Source::Stored* x, int r, Held<Source>& held) {
  if constexpr (std::is_same_v<Source, FromBf16>) {
    const uint4 v = load_once(reinterpret_cast<const uint4*>(x));
    held.pair[r][0] = v.x, held.pair[r][1] = v.y, held.pair[r][2] = v.z, held.pair[r][3] = v.w;
  } else {
    float v[run];
    load_floats(x, v);
    held.put(r, v);
  }
}

/// The thread's part of a patch that begins at `x`; zero where there is nothing.
template <class Source, class Extent>
__device__ Held<Source> load(const typename Source::Stored* x, std::int64_t width, const Seat& seat,
                             const Extent& extent) {
  Held<Source> held{};
  if constexpr (Extent::all) {
    if (!extent.holds(seat)) return held;
  }
#pragma unroll
  for (int r = 0; r < height; ++r) {
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
  return held;
}

// ---- largest magnitudes

__device__ inline std::uint32_t shuffled_larger(std::uint32_t bits, int lanes) {
  return larger(bits, __shfl_xor_sync(whole_warp, bits, lanes));
}
/// Of the words that lanes [0, lanes) of each group hold, in all of them.
template <int lanes>
__device__ std::uint32_t largest_across(std::uint32_t bits) {
#pragma unroll
  for (int step = 1; step < lanes; step *= 2) bits = shuffled_larger(bits, step);
  return bits;
}

/// Of all that the thread holds.
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

/// NaN becomes infinity, which has the same code where neither has one of its own. Returns the largest magnitude
/// before.
__device__ inline std::uint32_t largest_without_nan(Pairs& x) {
  std::uint32_t most = 0;
#pragma unroll
  for (int r = 0; r < height; ++r)
#pragma unroll
    for (int i = 0; i < run / 2; ++i) asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(x.pair[r][i]));
  const std::uint32_t top = larger(most << 16 & 0x7FFF0000u, most & 0x7FFF0000u);
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

/// Of rows r and r + 1 over `lanes` neighbouring lanes.
template <int lanes>
__device__ void largest_of_rows(const Pairs& x, int r, std::uint32_t (&top)[2]) {
  std::uint32_t of[2];
#pragma unroll
  for (int k = 0; k < 2; ++k)
    of[k] =
        larger_pair(larger_pair(x.pair[r + k][0], x.pair[r + k][1]), larger_pair(x.pair[r + k][2], x.pair[r + k][3]));
  // Row r goes low, row r + 1 high.
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

/// Of each column over the thread's sixteen rows.
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

/// Over a whole block of `team` threads. `warps` is shared memory of one word a warp.
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

/// Threads that reduce a member: it may have thousands of patches.
inline constexpr int member_threads = 512;

/// Largest of the thread's share of a member's owned patches, from `of_patches`, one a unit.
__device__ inline std::uint32_t largest_of_patches(const Descriptor& d, std::int64_t member, const float* of_patches) {
  const UnitRange range = owned_patches(d, member);
  std::uint32_t top = 0;
#pragma unroll 8
  for (std::int64_t i = range.begin + threadIdx.x; i < range.end; i += blockDim.x)
    top = larger(top, __float_as_uint(of_patches[i]));
  return top;
}

/// Spreads the blocks of threads that write scales evenly among those that move data: the former are bound by latency,
/// the latter by bandwidth.
struct Mixed {
  unsigned scales, step;
  Mixed(std::int64_t of_data, std::int64_t of_scales)
      : scales(static_cast<unsigned>(of_scales)),
        step(of_scales > 0 ? static_cast<unsigned>((of_data + of_scales) / of_scales) : 1) {}
  __device__ bool of_scales(unsigned block) const { return block % step == 0 && block / step < scales; }
  /// Among those of its kind.
  __device__ unsigned place(unsigned block) const {
    if (of_scales(block)) return block / step;
    const unsigned before = block / step + 1;
    return block - (before < scales ? before : scales);
  }
};

inline void check(cudaError_t status) {
  if (status != cudaSuccess) refuse("quantize", cudaGetErrorString(status));
}

/// When a kernel may begin: once its predecessor on the stream has ended, or as soon as that one lets it, which hides
/// how long a launch takes. An early one has every block pass await_previous() before it reads or writes what any
/// kernel writes, and so ends after its predecessors: those that follow need not know.
enum class Begins { in_turn, early };
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ inline void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// The kernel on the stream, `blocks` blocks of `team` threads; counted as launch() counts.
template <int team = threads, Begins begins = Begins::in_turn, class... Parameters, class... Arguments>
void start(Stream& stream, void (*kernel)(Parameters...), std::int64_t blocks, const Arguments&... arguments) {
  stream.count_launch();
  if (stream.dry() || blocks <= 0) return;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = begins == Begins::early;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(team);
  launch.stream = static_cast<cudaStream_t>(stream.native());
  launch.attrs = &early;
  launch.numAttrs = 1;
  check(cudaLaunchKernelEx(&launch, kernel, arguments...));
}

}  // namespace tessera::quantizer::device
