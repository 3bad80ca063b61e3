#pragma once
// Products of experts by CUTLASS's grouped kernels (TMA, wgmma, persistent blocks in pairs). There is one launch for
// all experts, whose rows are counted on the device. For sources compiled for sm_90a, apart from those with Kokkos.
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <type_traits>

#include "kernels/base/cuda.cuh"
#include "kernels/gemm/experts.cuh"
#include "kernels/gemm/experts.hpp"
#include "kernels/gemm/hopper.cuh"

namespace tessera::gemm::grouped {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;
using Size = cute::Shape<int, int, int>;  // m, n, k of one expert's product

/// A factor's elements, how each expert's matrix lies and, if it has them, how its scales lie.
template <class Element, class MatrixLayout, class ScaleLayout = void>
struct Factor {
  using Value = Element;
  using Matrix = MatrixLayout;
  using Layout =
      std::conditional_t<std::is_void_v<ScaleLayout>, MatrixLayout*, cute::tuple<MatrixLayout*, ScaleLayout*>>;
  static constexpr int chunk = 16 / sizeof(Element);  ///< elements of 16 bytes
};

/// A kernel. `over_rows` false: rows times weights (forward, input gradient), to bf16. `over_rows` true: sums over rows
/// (weight gradient), in fp32, added to beta times what was there. `Adapted` changes CUTLASS's main loop.
template <bool over_rows, class FactorA, class FactorB, class Tile, class Cluster, class Schedule,
          template <class> class Adapted = std::type_identity_t>
struct Multiplier {
  static constexpr bool sums = over_rows;
  using A = typename FactorA::Value;
  using B = typename FactorB::Value;
  using Sum = std::conditional_t<sums, float, cutlass::bfloat16_t>;
  using Source = std::conditional_t<sums, float, void>;  // what beta multiplies
  static constexpr int sum_chunk = 16 / sizeof(Sum);
  /// Whether neighbours in memory are neighbours in a sum.
  static constexpr bool a_along_sums = std::is_same_v<typename FactorA::Matrix, RowMajor>;
  static constexpr bool b_along_sums = std::is_same_v<typename FactorB::Matrix, ColumnMajor>;

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, RowMajor*, sum_chunk, Sum, RowMajor*,
      sum_chunk, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
      cutlass::epilogue::fusion::LinearCombination<Sum, float, Source>>::CollectiveOp;
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, typename FactorA::Layout, FactorA::chunk, B,
      typename FactorB::Layout, FactorB::chunk, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Size>, Adapted<MainLoop>, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

/// Room for the descriptors that a kernel writes while it runs: one set a multiprocessor.
constexpr std::int64_t most_multiprocessors = 256, descriptors = 5, descriptor_bytes = 128;
constexpr std::int64_t descriptor_room = most_multiprocessors * descriptors * descriptor_bytes;

/// Arrays with one entry per expert, one behind the other in device memory.
class Arrays {
 public:
  Arrays(std::byte* memory, std::int64_t experts) : at_(memory), experts_(experts) {}
  template <class... T>
  void take(T*&... arrays) {
    (take_one(arrays), ...);
  }

  /// The bytes that arrays of these types need.
  template <class... T>
  static constexpr std::int64_t bytes(std::int64_t experts) {
    return (round_up(experts * static_cast<std::int64_t>(sizeof(T)), 16) + ...);
  }

 private:
  template <class T>
  void take_one(T*& array) {
    array = reinterpret_cast<T*>(at_);
    at_ += bytes<T>(experts_);
  }
  std::byte* at_;
  std::int64_t experts_;
};

/// The arguments of a kernel: arrays on the device with one entry per expert.
template <class G>
struct Table {
  using StepA = typename G::Kernel::InternalStrideA;
  using StepB = typename G::Kernel::InternalStrideB;
  using StepC = typename G::Kernel::InternalStrideD;

  Size* size;
  const typename G::A** a;
  const typename G::B** b;
  typename G::Sum** c;
  StepA* step_a;
  StepB* step_b;
  StepC* step_c;

  explicit Table(Arrays& arrays) { arrays.take(size, a, b, c, step_a, step_b, step_c); }
  static constexpr std::int64_t bytes(std::int64_t experts) {
    return Arrays::bytes<Size, void*, void*, void*, StepA, StepB, StepC>(experts);
  }
};

/// One product with its experts, as product.hpp describes it.
template <class G>
struct Problem {
  const typename G::A* a;  ///< all experts' rows
  const typename G::B* b;  ///< all experts' rows; of sums alone
  /// Each expert's own matrix: c of sums, else b.
  Pointers<std::conditional_t<G::sums, float, const typename G::B>> member;
  typename G::Sum* rows;  ///< c of rows times weights
  const std::int32_t* offsets;
  int m, n, k;
  bool clears;  ///< experts without rows get gradients of 0 (beta 0) instead of keeping theirs

  __device__ std::int64_t step_a() const { return G::a_along_sums ? k : m; }
  __device__ std::int64_t step_b() const { return G::b_along_sums ? k : n; }
};

/// Factors without scales of their own.
struct Unscaled {
  Unscaled(Arrays&, const Addresses&) {}
  static constexpr std::int64_t bytes(std::int64_t) { return 0; }
  template <class G>
  __device__ void describe(const Problem<G>&, int, std::int64_t, int) const {}
  template <class G>
  typename G::Kernel::MainloopArguments factors(const Table<G>& t) const {
    return {t.a, t.step_a, t.b, t.step_b};
  }
};

constexpr unsigned clearing_blocks = 32;
/// Sets a gradient of `count` floats, a multiple of 4, to 0; the blocks of x share it.
__device__ inline void clear(float* gradient, std::int64_t count) {
  auto* const c = reinterpret_cast<float4*>(gradient);
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count / 4; i += step)
    c[i] = {0, 0, 0, 0};
}

/// Block (., e) writes the arguments of expert e's product, of size 0 if it has no rows; the blocks of one e share the
/// clearing of its gradient.
template <class G, class Scales>
__global__ void describe(const __grid_constant__ Problem<G> p, const __grid_constant__ Table<G> table,
                         const __grid_constant__ Scales scales) {
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t begin = p.offsets[e];
  const auto rows = static_cast<int>(p.offsets[e + 1] - begin);
  if constexpr (G::sums)
    if (p.clears && rows == 0) clear(p.member(e), std::int64_t{p.m} * p.n);
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  if constexpr (G::sums) {
    table.size[e] = {rows > 0 ? p.m : 0, p.n, rows};
    table.a[e] = p.a + (G::a_along_sums ? begin : begin * p.m);
    table.b[e] = p.b + (G::b_along_sums ? begin : begin * p.n);
    table.c[e] = p.member(e);
  } else {
    table.size[e] = {rows, p.n, p.k};
    table.a[e] = p.a + begin * p.k;
    table.b[e] = p.member(e);
    table.c[e] = p.rows + begin * p.n;
  }
  table.step_a[e] = hopper::stepping<typename Table<G>::StepA>(p.step_a());
  table.step_b[e] = hopper::stepping<typename Table<G>::StepB>(p.step_b());
  table.step_c[e] = hopper::stepping<typename Table<G>::StepC>(p.n);
  scales.describe(p, e, begin, rows);
}

template <class G>
Problem<G> problem_of(const Product& product, const Addresses& at) {
  using A = typename G::A;
  using B = typename G::B;
  Problem<G> p{};
  p.a = static_cast<const A*>(at.a.data.data);
  if constexpr (G::sums) {
    p.b = static_cast<const B*>(at.b.list[0].data.data);
    p.member = pointers_of<float>(at.c);
    p.clears = product.beta == 0;
  } else {
    p.member = pointers_of<const B>(at.b, [](const Operand& o) { return static_cast<const B*>(o.data.data); });
    p.rows = static_cast<typename G::Sum*>(at.c.list[0].sum.data);
  }
  p.offsets = at.offsets.as<std::int32_t>();
  p.m = static_cast<int>(product.m), p.n = static_cast<int>(product.n), p.k = static_cast<int>(product.k);
  return p;
}

/// Multiplies by kernel G. A dry stream notes the workspace.
template <class G, class Scales = Unscaled>
void run(Stream& stream, const Product& product, const Addresses& at) {
  std::byte* const memory =
      stream.workspace("grouped products",
                       descriptor_room + Table<G>::bytes(product.experts) + Scales::bytes(product.experts));
  if (stream.dry()) return;
  auto* const queue = static_cast<cudaStream_t>(stream.native());
  Arrays arrays(memory + descriptor_room, product.experts);
  const Table<G> table(arrays);
  const Scales scales(arrays, at);
  const Problem<G> p = problem_of<G>(product, at);
  const auto experts = static_cast<int>(product.experts);
  const dim3 blocks(p.clears ? clearing_blocks : 1, static_cast<unsigned>(experts));
  start_kernel(queue, "describe", describe<G, Scales>, {blocks, 128}, p, table, scales);
  typename G::Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGrouped,
                                        {experts, table.size, nullptr},
                                        scales.factors(table),
                                        {{}, nullptr, table.step_c, table.c, table.step_c},
                                        hopper::hardware()};
  auto& epilogue = arguments.epilogue.thread;
  epilogue.alpha = 1;
  epilogue.beta = product.beta;
  if (product.scaled) {
    epilogue.alpha_ptr = at.alpha.as<float>();
    cute::get<2>(epilogue.dAlpha) = G::sums ? 0 : 1;  // weight gradients have one alpha, the others one an expert
  }
  if constexpr (G::sums) arguments.epilogue.ptr_C = const_cast<const float**>(table.c);
  hopper::start<typename G::Gemm>(queue, arguments, memory, descriptor_room);
}

/// Whether every matrix begins at a multiple of 16 bytes, which TMA demands.
inline bool lie_whole(const Addresses& at) {
  const auto data = [](const Operand& o) { return o.data; };
  const auto sum = [](const Gradient& g) { return g.sum; };
  return reinterpret_cast<std::uintptr_t>(at.a.data.data) % 16 == 0 && begin_whole(at.b, data) &&
         begin_whole(at.c, sum);
}

}  // namespace tessera::gemm::grouped
