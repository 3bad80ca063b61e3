#pragma once
// Heads of 128 columns on Hopper's tensor cores: matrices made of tiles of 64 x 64, their products, and blocks of two
// warpgroups that compute and one that loads. For sources compiled for sm_90a only.
#include "kernels/attention/sweep_sm90a.cuh"

namespace tessera::attention::wide {

using tiles::begin_products;
using tiles::end_products;
using tiles::exp2_of;
using tiles::Group;
using tiles::group_threads;
using tiles::Item;
using tiles::load;
using tiles::Major;
using tiles::packed;
using tiles::ThreadLayout;
using tiles::ScaleOut;
using tiles::Sequences;
using tiles::side;
using tiles::store;
using tiles::Tile;
using tiles::tile_bytes;
using tiles::uniform;
using tiles::Value;
using tiles::wait_products;

constexpr int width = 128, panels = width / side;  ///< columns of a head; tiles side by side
constexpr int groups = 2;                          ///< warpgroups of a block that compute, 64 rows each; one more loads
constexpr int block_rows = groups * side, block_threads = (groups + 1) * group_threads;
constexpr std::uint32_t group_warps = group_threads / 32, reading_warps = groups * group_warps;
constexpr int loading_registers = 24, computing_registers = 240;

/// A matrix in shared memory: columns by panels of 64, each of them tiles one below the other.
template <int rows, int columns>
using ByRows = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Value>{},
                                            cute::Shape<cute::Int<rows>, cute::Int<columns>>{}));
/// Its transpose.
template <int rows, int columns>
using ByColumns =
    decltype(cute::composition(ByRows<rows, columns>{},
                               cute::Layout<cute::Shape<cute::Int<columns>, cute::Int<rows>>,
                                            cute::Stride<cute::Int<rows>, cute::_1>>{}));

template <int n, Major both = Major::K>
using BothShared =
    decltype(cute::make_tiled_mma(cute::SM90::GMMA::ss_op_selector<Value, Value, float,
                                                                    cute::Shape<cute::_64, cute::Int<n>, cute::_64>,
                                                                    both, both>()));
template <int n, Major b>
using OneShared =
    decltype(cute::make_tiled_mma(cute::SM90::GMMA::rs_op_selector<Value, Value, float,
                                                                    cute::Shape<cute::_64, cute::Int<n>, cute::_64>,
                                                                    Major::K, b>()));

/// A warpgroup's registers of a 64 x n matrix: fp32 sums, or the left factor of a product in bf16. ThreadLayout gives
/// where value i of a thread lies.
template <int n>
using Sums = decltype(cute::partition_fragment_C(BothShared<n>{},
                                                 cute::Shape<cute::_64, cute::Int<n>>{}));
template <int n>
using Factor = decltype(cute::make_tensor<Value>(
    cute::partition_shape_A(OneShared<n, Major::K>{}, cute::Shape<cute::_64, cute::Int<n>>{})));
template <int n>
constexpr int values = n / 2;  ///< of a 64 x n matrix, per thread
static_assert(decltype(cute::size(Sums<width>{}))::value == values<width>);
static_assert(decltype(cute::size(Factor<side>{}))::value == values<side>);

template <int n>
__device__ Factor<n> rounded(const Sums<n>& sums) {
  Factor<n> f;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < values<n> / 2; ++i)
    reinterpret_cast<std::uint32_t*>(f.data())[i] = packed(sums(2 * i), sums(2 * i + 1));
  return f;
}

/// Writes the 64 columns of `sums` from value `first` on to a tile.
template <int n>
__device__ void write(Tile& tile, const ThreadLayout& layout, const Sums<n>& sums, float scale, int first = 0) {
  CUTLASS_PRAGMA_UNROLL
  for (int k = 0; k < values<side>; k += 8) {
    const auto two = [&](int i) { return packed(scale * sums(first + k + i), scale * sums(first + k + i + 1)); };
    cute::SM90_U32x4_STSM_N::copy(two(0), two(2), two(4), two(6), layout.chunk(tile, k / 8));
  }
}

__device__ inline void write(Tile& tile, const ThreadLayout& layout, const Factor<side>& f) {
  const auto two = [&](int i) { return reinterpret_cast<const std::uint32_t*>(f.data())[i]; };
  CUTLASS_PRAGMA_UNROLL
  for (int k = 0; k < values<side> / 2; k += 4)
    cute::SM90_U32x4_STSM_N::copy(two(k), two(k + 1), two(k + 2), two(k + 3), layout.chunk(tile, k / 4));
}

/// Starts sums (+)= a b; LayoutA: of a, LayoutB: of b's transpose, as wgmma takes it, from these tiles on.
template <class LayoutA, class LayoutB, class Mma, class S>
__device__ void start_shared(S& sums, Tile& a, Tile& b, ScaleOut old) {
  const auto mma = Mma{}.get_slice(0);
  tiles::multiply<Mma>(sums, mma.make_fragment_A(mma.partition_A(tiles::matrix<LayoutA>(a))),
                       mma.make_fragment_B(mma.partition_B(tiles::matrix<LayoutB>(b))), old);
}
/// Starts sums = a b^T, with 64 rows of a and n of b, 128 columns each.
template <int n>
__device__ void start_by_rows(Sums<n>& sums, Tile& a, Tile& b) {
  start_shared<ByRows<side, width>, ByRows<n, width>, BothShared<n>>(sums, a, b, ScaleOut::Zero);
}
/// Starts sums (+)= a^T b for a tile of each.
__device__ inline void start_by_columns(Sums<side>& sums, Tile& a, Tile& b, ScaleOut old) {
  using Turned = ByColumns<side, side>;
  start_shared<Turned, Turned, BothShared<side, Major::MN>>(sums, a, b, old);
}
/// Starts sums += a b for b of k rows and 128 columns.
template <int k>
__device__ void start_adding(Sums<width>& sums, const Factor<k>& a, Tile& b) {
  using Mma = OneShared<width, Major::MN>;
  const auto mma = Mma{}.get_slice(0);
  tiles::multiply<Mma>(sums, a, mma.make_fragment_B(mma.partition_B(tiles::matrix<ByColumns<k, width>>(b))),
                       ScaleOut::One);
}

/// Loads 64 rows of a head: its panels, `stride` tiles apart.
__device__ inline void load_rows(Tile* to, int stride, const CUtensorMap& from, std::uint64_t* arrival, int head,
                                 int token, int sequence) {
  for (int panel = 0; panel < panels; ++panel)
    load(to[panel * stride], from, arrival, head * panels + panel, token, sequence);
}

/// A kernel of persistent blocks: one warpgroup loads, the others compute.
template <class Work>
__global__ void __launch_bounds__(block_threads, 1) wide_kernel(const __grid_constant__ typename Work::Call call) {
  using Memory = typename Work::Memory;
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  Memory& memory = *reinterpret_cast<Memory*>(bytes);
  if (threadIdx.x == 0) {
    memory.init();
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  const int group = static_cast<int>(uniform(threadIdx.x / group_threads));
  if (group == groups) {
    cutlass::arch::warpgroup_reg_dealloc<loading_registers>();
    const int thread = static_cast<int>(threadIdx.x) % group_threads;
    if (thread % 32 == 0) Work::load(call, memory, thread / 32);
  } else {
    cutlass::arch::warpgroup_reg_alloc<computing_registers>();
    Work::compute(call, memory, Group(group));
    cute::tma_store_wait<0>();
  }
}

template <class Work>
void start(Stream& stream, const typename Work::Call& call) {
  static_assert(sizeof(typename Work::Memory) <= 232448, "more shared memory than a block has");
  start_kernel(static_cast<cudaStream_t>(stream.native()), "attention", wide_kernel<Work>,
               {static_cast<unsigned>(tiles::multiprocessors_of_device()), block_threads,
                sizeof(typename Work::Memory)},
               call);
}

}  // namespace tessera::attention::wide
