// Products of experts whose factors are FP8 codes with one scale each, on Hopper's tensor cores by CUTLASS's grouped
// kernels. These add sums of a few codes up in fp32. The scales make an alpha. One launch serves all experts, whose
// rows are counted on the device. Compiled for sm_90a, apart from sources that include Kokkos.
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <type_traits>

#include "kernels/base/cuda.cuh"
#include "kernels/formats/registry.hpp"
#include "kernels/gemm/experts.cuh"
#include "kernels/gemm/experts.hpp"
#include "kernels/gemm/hopper.cuh"

namespace tessera::gemm {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;
using hopper::Size;
using hopper::stepping;
using E4M3 = cutlass::float_e4m3_t;
using E5M2 = cutlass::float_e5m2_t;

/// CUTLASS's kernel for a factor a of A codes. `sums` false: rows times weights (forward, input gradient). `sums` true:
/// sums over rows (weight gradient), in fp32, added to what was there. The summed dimension is contiguous in both
/// factors.
template <bool sums, class A>
struct Grouped {
  using Sum = std::conditional_t<sums, float, cutlass::bfloat16_t>;
  using Source = std::conditional_t<sums, float, void>;
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_128>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  static constexpr int chunk = 16, sum_chunk = 16 / sizeof(Sum);  // elements of 16 bytes

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, RowMajor*, sum_chunk, Sum, RowMajor*,
      sum_chunk, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
      cutlass::epilogue::fusion::LinearCombination<Sum, float, Source>>::CollectiveOp;
  // The schedule without "FastAccum": tensor cores keep too few bits of a sum for long ones.
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, RowMajor*, chunk, E4M3, ColumnMajor*, chunk, float, Tile,
      Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Size>, MainLoop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

/// The arguments of CUTLASS's grouped kernel: arrays on the device with one entry per product.
template <bool sums, class A>
struct Table {
  using G = Grouped<sums, A>;
  using Kernel = typename G::Kernel;

  Size* size;
  const A** a;
  const E4M3** b;
  typename G::Sum** c;
  typename Kernel::InternalStrideA* step_a;
  typename Kernel::InternalStrideB* step_b;
  typename Kernel::InternalStrideD* step_c;

  Table(std::byte* memory, std::int64_t experts) {
    hopper::Arrays(memory, experts).take(size, a, b, c, step_a, step_b, step_c);
  }
};
/// An upper bound of a table's bytes: the size, pointers and strides of 8 bytes each.
constexpr std::int64_t table_bytes(std::int64_t experts) {
  using Eight = std::int64_t;
  return hopper::Arrays::bytes<Size, Eight, Eight, Eight, Eight, Eight, Eight>(experts);
}

/// One product with its experts, as product.hpp describes it: each expert has its own `member` (a weight), or its own
/// `sum` (a gradient).
template <bool sums, class A>
struct Problem {
  const A* a;
  const E4M3* b;  ///< all experts' rows; used by sums alone
  Pointers<const E4M3> member;
  Pointers<float> sum;
  cutlass::bfloat16_t* rows;  ///< c of rows times weights
  const std::int32_t* offsets;
  int m, n, k;
  bool clears;  ///< experts without rows get gradients of 0 (beta 0) instead of keeping theirs
};

/// Block (., e) writes the arguments of expert e's product, of size 0 if it has no rows; the blocks of one e share the
/// clearing of its gradient.
template <bool sums, class A>
__global__ void describe(const __grid_constant__ Problem<sums, A> p, const __grid_constant__ Table<sums, A> table) {
  using Kernel = typename Grouped<sums, A>::Kernel;
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t begin = p.offsets[e];
  const auto rows = static_cast<int>(p.offsets[e + 1] - begin);
  if constexpr (sums)
    if (p.clears && rows == 0) hopper::clear(p.sum(e), std::int64_t{p.m} * p.n);
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  if constexpr (sums) {
    table.size[e] = {rows > 0 ? p.m : 0, p.n, rows};
    table.a[e] = p.a + begin;
    table.b[e] = p.b + begin;
    table.c[e] = p.sum(e);
  } else {
    table.size[e] = {rows, p.n, p.k};
    table.a[e] = p.a + begin * p.k;
    table.b[e] = p.member(e);
    table.c[e] = p.rows + begin * p.n;
  }
  table.step_a[e] = stepping<typename Kernel::InternalStrideA>(p.k);
  table.step_b[e] = stepping<typename Kernel::InternalStrideB>(p.k);
  table.step_c[e] = stepping<typename Kernel::InternalStrideD>(p.n);
}

template <bool sums, class A>
Problem<sums, A> problem_of(const Product& product, const Addresses& at) {
  Problem<sums, A> p{};
  p.a = static_cast<const A*>(at.a.data.data);
  if constexpr (sums) {
    p.b = static_cast<const E4M3*>(at.b.list[0].data.data);
    p.sum = pointers_of<float>(at.c);
    p.clears = product.beta == 0;
  } else {
    p.member = pointers_of<const E4M3>(at.b, [](const Operand& o) { return static_cast<const E4M3*>(o.data.data); });
    p.rows = static_cast<cutlass::bfloat16_t*>(at.c.list[0].sum.data);
  }
  p.offsets = at.offsets.as<std::int32_t>();
  p.m = static_cast<int>(product.m), p.n = static_cast<int>(product.n), p.k = static_cast<int>(product.k);
  return p;
}

template <bool sums, class A>
void run(Stream& stream, const Product& product, const Addresses& at) {
  using G = Grouped<sums, A>;
  std::byte* const memory =
      stream.workspace("grouped products", hopper::descriptor_room + table_bytes(product.experts));
  if (stream.dry()) return;
  auto* const queue = static_cast<cudaStream_t>(stream.native());
  const Table<sums, A> table(memory + hopper::descriptor_room, product.experts);
  const Problem<sums, A> p = problem_of<sums, A>(product, at);
  const auto experts = static_cast<int>(product.experts);
  const dim3 blocks(p.clears ? hopper::clearing_blocks : 1, static_cast<unsigned>(experts));
  start_kernel(queue, "describe", describe<sums, A>, {blocks, 128}, p, table);
  typename G::Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGrouped,
                                        {experts, table.size, nullptr},
                                        {table.a, table.step_a, table.b, table.step_b},
                                        {{}, nullptr, table.step_c, table.c, table.step_c},
                                        hopper::hardware()};
  auto& epilogue = arguments.epilogue.thread;
  epilogue.beta = product.beta;
  epilogue.alpha_ptr = at.alpha.as<float>();
  cute::get<2>(epilogue.dAlpha) = sums ? 0 : 1;  // weight gradients have one alpha, the others one an expert
  if constexpr (sums) arguments.epilogue.ptr_C = const_cast<const float**>(table.c);
  hopper::start<typename G::Gemm>(queue, arguments, memory);
}

}  // namespace

void multiply_grouped_tensors(Stream& stream, const Product& product, const Addresses& at) {
  const auto data = [](const Operand& o) { return o.data; };
  const auto sum = [](const Gradient& g) { return g.sum; };
  const bool whole =
      reinterpret_cast<std::uintptr_t>(at.a.data.data) % 16 == 0 && begin_whole(at.b, data) && begin_whole(at.c, sum);
  require(whole || stream.dry(), "products of experts in FP8", "factors and results begin at multiples of 16 bytes");
  const auto run_with = [&]<class A>(A) {
    if (product.form == Form::weight_gradient)
      run<true, A>(stream, product, at);
    else
      run<false, A>(stream, product, at);
  };
  if (*product.a == formats::id_of<formats::Fp8TensorE5m2>) return run_with(E5M2());
  run_with(E4M3());
}

}  // namespace tessera::gemm
