#pragma once
// Tiles of 64 x 64 on Hopper: loaded and stored by TMA, multiplied by wgmma. For sources compiled for sm_90a only.
#include <cuda.h>
#include <cutlass/numeric_types.h>

#include <cstdint>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/tensor.hpp>

namespace tessera::attention::tiles {

using Value = cutlass::bfloat16_t;
constexpr int side = 64;            ///< rows of a tile, and columns: those of a head
constexpr int group_threads = 128;  ///< of a warpgroup, which multiplies tiles as one

/// Rows of one head in shared memory, in the swizzle of 128 bytes that TMA and wgmma know.
struct alignas(1024) Tile {
  Value value[side * side];
};
constexpr std::uint32_t tile_bytes = sizeof(Tile);

/// Loads the tile of head `slot` that begins at `token`; rows beyond the sequence become zeros.
__device__ inline void load(Tile& tile, const CUtensorMap& from, std::uint64_t* arrival, int slot, int token,
                            int sequence) {
  constexpr auto keep = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  cute::SM90_TMA_LOAD_4D::copy(&from, arrival, keep, &tile, 0, slot, token, sequence);
}
/// Writes a tile back; rows beyond the sequence are left out.
__device__ inline void store(const CUtensorMap& to, Tile& tile, int slot, int token, int sequence) {
  cute::SM90_TMA_STORE_4D::copy(&to, &tile, 0, slot, token, sequence);
}

// CUTLASS's layouts of a tile as a matrix, and of its transpose; its products of 64 x 64 x 16.
using cute::SM90::GMMA::Major;
using Square = cute::Shape<cute::_64, cute::_64>;
using Rows = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Value>{}, Square{}));
using Columns = decltype(cute::composition(Rows{}, cute::Layout<Square, cute::Stride<cute::_64, cute::_1>>{}));
using BothShared = decltype(cute::make_tiled_mma(cute::SM90_64x64x16_F32BF16BF16_SS<Major::K, Major::K>{}));
template <Major b>
using OneShared = decltype(cute::make_tiled_mma(cute::SM90_64x64x16_F32BF16BF16_RS<Major::K, b>{}));

/// A warpgroup's registers of a 64 x 64 matrix: fp32 sums, or the left factor of a product in bf16. Value i of a thread
/// has the same place in both: see ThreadLayout.
using Sums = decltype(cute::partition_fragment_C(BothShared{}, Square{}));
using Factor = decltype(cute::make_tensor<Value>(cute::partition_shape_A(OneShared<Major::K>{}, Square{})));
constexpr int values = 32;  ///< of a 64 x 64 matrix, per thread
static_assert(decltype(cute::size(Sums{}))::value == values && decltype(cute::size(Factor{}))::value == values);

/// Where a thread's values lie in a matrix: value i in row(i), column(i); i and i + 1 side by side for an even i.
class ThreadLayout {
 public:
  __device__ explicit ThreadLayout(int thread_of_group) : thread_(thread_of_group) {}
  __device__ int row(int i) const { return thread_ / 32 * 16 + thread_ % 32 / 4 + (i & 2) * 4; }
  __device__ int column(int i) const { return thread_ % 4 * 2 + (i & 1) + (i & ~3) * 2; }
  /// The 16 bytes of a tile whose address this thread gives when its warp loads or stores (ldmatrix, stmatrix) values 8
  /// k to 8 k + 7. They are four matrices of 8 x 8, two below each other, then the two to their right.
  __device__ cute::uint128_t& chunk(Tile& tile, int k) const {
    const int row = thread_ / 32 * 16 + thread_ % 16, right = thread_ % 32 / 16;
    return *reinterpret_cast<cute::uint128_t*>(tile.value + row * side + ((right ^ row % 8) * 8 ^ k * 16));
  }

 private:
  int thread_;
};

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline std::uint32_t packed(float low, float high) {
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// Values 2i and 2i + 1 of a factor.
__device__ inline std::uint32_t& pair(Factor& f, int i) { return reinterpret_cast<std::uint32_t*>(f.data())[i]; }

__device__ inline Factor rounded(const Sums& sums) {
  Factor f;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < values / 2; ++i) pair(f, i) = packed(sums(2 * i), sums(2 * i + 1));
  return f;
}

__device__ inline Factor read(Tile& tile, const ThreadLayout& layout) {
  Factor f;
  CUTLASS_PRAGMA_UNROLL
  for (int k = 0; k < values / 8; ++k)
    cute::SM75_U32x4_LDSM_N::copy(layout.chunk(tile, k), pair(f, 4 * k), pair(f, 4 * k + 1), pair(f, 4 * k + 2),
                                  pair(f, 4 * k + 3));
  return f;
}

__device__ inline void write(Tile& tile, const ThreadLayout& layout, const Sums& sums, float scale) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < values; i += 8)
    cute::SM90_U32x4_STSM_N::copy(packed(scale * sums(i), scale * sums(i + 1)),
                                  packed(scale * sums(i + 2), scale * sums(i + 3)),
                                  packed(scale * sums(i + 4), scale * sums(i + 5)),
                                  packed(scale * sums(i + 6), scale * sums(i + 7)), layout.chunk(tile, i / 8));
}

/// A number that is the same in all threads of a warp: the compiler then computes addresses, and descriptors of wgmma,
/// in uniform registers.
__device__ inline unsigned uniform(unsigned x) { return __shfl_sync(0xFFFFFFFFu, x, 0); }

template <class Layout>
__device__ auto matrix(Tile& tile) {
  return cute::make_tensor(cute::make_smem_ptr(tile.value), Layout{});
}

using cute::SM90::GMMA::ScaleOut;

template <class Mma, class S, class A, class B>
__device__ void multiply(S& sums, const A& a, const B& b, ScaleOut old) {
  Mma mma;
  mma.accumulate_ = old;
  CUTLASS_PRAGMA_UNROLL
  for (int k = 0; k < cute::size<2>(a); ++k) {
    cute::gemm(mma, a(cute::_, cute::_, k), b(cute::_, cute::_, k), sums);
    mma.accumulate_ = ScaleOut::One;
  }
}

// Products run asynchronously: begin_products(), starts, end_products(), later wait_products(). A warpgroup calls them
// as one.

/// Starts sums = a b^T.
__device__ inline void start_by_rows(Sums& sums, const Factor& a, Tile& b) {
  const auto mma = OneShared<Major::K>{}.get_slice(0);
  multiply<OneShared<Major::K>>(sums, a, mma.make_fragment_B(mma.partition_B(matrix<Rows>(b))), ScaleOut::Zero);
}
__device__ inline void start_by_rows(Sums& sums, Tile& a, Tile& b) {
  const auto mma = BothShared{}.get_slice(0);
  multiply<BothShared>(sums, mma.make_fragment_A(mma.partition_A(matrix<Rows>(a))),
                       mma.make_fragment_B(mma.partition_B(matrix<Rows>(b))), ScaleOut::Zero);
}
/// Starts sums += a b.
__device__ inline void start_adding(Sums& sums, const Factor& a, Tile& b) {
  const auto mma = OneShared<Major::MN>{}.get_slice(0);
  multiply<OneShared<Major::MN>>(sums, a, mma.make_fragment_B(mma.partition_B(matrix<Columns>(b))), ScaleOut::One);
}

/// Orders products that follow behind what wrote these registers.
template <class... Registers>
__device__ void begin_products(Registers&... registers) {
  (cute::warpgroup_fence_operand(registers), ...);
  cute::warpgroup_arrive();
}
/// Ends a batch of products.
__device__ inline void end_products() { cute::warpgroup_commit_batch(); }
/// Waits until at most `left` batches are under way. `registers`: sums of the batches that have ended, and factors that
/// are to be overwritten, which stay where they are until then.
template <int left, class... Registers>
__device__ void wait_products(Registers&... registers) {
  cute::warpgroup_wait<left>();
  (cute::warpgroup_fence_operand(registers), ...);
}

}  // namespace tessera::attention::tiles
