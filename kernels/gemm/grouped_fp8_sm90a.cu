// Products of experts whose factors are FP8 blocks, on Hopper's tensor cores by CUTLASS's grouped kernels. Sums of 128
// codes are multiplied by their two scales and added up in fp32. One launch serves all experts, whose rows are counted
// on the device. Compiled for sm_90a, apart from sources that include Kokkos.
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/detail/blockwise_scale_layout.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "kernels/base/cuda.cuh"
#include "kernels/gemm/experts.cuh"
#include "kernels/gemm/experts.hpp"
#include "kernels/gemm/hopper.cuh"

namespace tessera::gemm {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;
using hopper::block;
using hopper::Size;
using hopper::stepping;
using Code = cutlass::float_e4m3_t;

/// CUTLASS's main loop, adapted: it expects each expert's scales in an array of their own. It is told here where they
/// lie in the array of all rows' scales.
template <class Base>
struct AmongOthers : Base {
  using Params = typename Base::Params;
  using ScalesA = typename Base::InternalLayoutSFA;
  using ScalesB = typename Base::InternalLayoutSFB;

  template <class Shape>
  CUTLASS_DEVICE auto load_init(const Shape& shape, const Params& params) const {
    return with_scales(shape, params, nullptr, ScalesA{}, nullptr, ScalesB{});
  }
  template <class Inputs, class Shape>
  CUTLASS_DEVICE Inputs tensors_perform_update(const Inputs&, const Params& params, const Shape& shape,
                                               int expert) const {
    return with_scales(shape, params, params.ptr_SFA[expert], params.layout_SFA[expert], params.ptr_SFB[expert],
                       params.layout_SFB[expert]);
  }

 private:
  template <class Shape>
  CUTLASS_DEVICE auto with_scales(const Shape& shape, const Params& params, const float* a, const ScalesA& of_a,
                                  const float* b, const ScalesB& of_b) const {
    const auto inputs = Base::load_init(shape, params);
    return cute::make_tuple(cute::get<0>(inputs), cute::get<1>(inputs), cute::make_tensor(cute::make_gmem_ptr(a), of_a),
                            cute::make_tensor(cute::make_gmem_ptr(b), of_b));
  }
};

/// CUTLASS's kernel. `sums` false: rows times weights (forward, input gradient). `sums` true: sums over rows (weight
/// gradient), in fp32, added to what was there. The summed dimension is contiguous in both factors' codes.
template <bool sums>
struct Grouped {
  using Sum = std::conditional_t<sums, float, cutlass::bfloat16_t>;
  using Source = std::conditional_t<sums, float, void>;
  using Tile = cute::Shape<cute::_128, cute::_128, cute::Int<block>>;
  using Cluster = cute::Shape<cute::_1, cute::_2, cute::_1>;
  static constexpr int chunk = 16, sum_chunk = 16 / sizeof(Sum);     // elements of 16 bytes
  static constexpr int rows_of_a = 1, rows_of_b = sums ? 1 : block;  // rows that share a scale
  // Scales of rows are neighbours, one line of them per block of the sum; scales of weights lie as their blocks do.
  using Scales = cutlass::detail::Sm90BlockwiseScaleConfig<rows_of_a, rows_of_b, block, cute::GMMA::Major::MN,
                                                           sums ? cute::GMMA::Major::MN : cute::GMMA::Major::K>;
  using ScalesA = decltype(Scales::deduce_layoutSFA());
  using ScalesB = decltype(Scales::deduce_layoutSFB());

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, RowMajor*, sum_chunk, Sum, RowMajor*,
      sum_chunk, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
      cutlass::epilogue::fusion::LinearCombination<Sum, float, Source>>::CollectiveOp;
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Code, cute::tuple<RowMajor*, ScalesA*>, chunk, Code,
      cute::tuple<ColumnMajor*, ScalesB*>, chunk, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeFP8Blockwise>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Size>, AmongOthers<MainLoop>, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

/// The arguments of CUTLASS's grouped kernel: arrays on the device with one entry per product.
template <bool sums>
struct Table {
  using G = Grouped<sums>;
  using Kernel = typename G::Kernel;

  Size* size;
  const Code **a, **b;
  const float **scales_a, **scales_b;
  typename G::Sum** c;
  typename Kernel::InternalStrideA* step_a;
  typename Kernel::InternalStrideB* step_b;
  typename Kernel::InternalStrideD* step_c;
  typename G::ScalesA* grid_a;
  typename G::ScalesB* grid_b;

  Table(std::byte* memory, std::int64_t experts) {
    hopper::Arrays(memory, experts).take(size, a, b, scales_a, scales_b, c, step_a, step_b, step_c, grid_a, grid_b);
  }
  static std::int64_t bytes(std::int64_t experts) {
    return hopper::Arrays::bytes<Size, void*, void*, void*, void*, void*, typename Kernel::InternalStrideA,
                                 typename Kernel::InternalStrideB, typename Kernel::InternalStrideD,
                                 typename G::ScalesA, typename G::ScalesB>(experts);
  }
};

/// A factor that holds all experts' rows: codes, scales, and the distance in elements between lines of each.
struct OfRows {
  const Code* codes;
  const float* scales;
  std::int64_t line, scale_line;
};
/// One product with its experts, as product.hpp describes it. Each expert has its own `member` (a weight) with its
/// scales, or its own `sum` (a gradient).
template <bool sums>
struct Problem {
  OfRows a, b;  ///< b: used by sums over rows alone
  Pointers<const Code> member;
  Pointers<const float> member_scales;
  Pointers<float> sum;
  cutlass::bfloat16_t* rows;  ///< c of rows times weights
  const std::int32_t* offsets;
  int m, n, k;
  int member_scale_line;
  bool clears;  ///< experts without rows get gradients of 0 (beta 0) instead of keeping theirs
};

/// Block (., e) writes the arguments of expert e's product, of size 0 if it has no rows; the blocks of one e share the
/// clearing of its gradient.
template <bool sums>
__global__ void describe(const __grid_constant__ Problem<sums> p, const __grid_constant__ Table<sums> table) {
  using G = Grouped<sums>;
  using Kernel = typename G::Kernel;
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t begin = p.offsets[e];
  const auto rows = static_cast<int>(p.offsets[e + 1] - begin);
  if constexpr (sums)
    if (p.clears && rows == 0) hopper::clear(p.sum(e), std::int64_t{p.m} * p.n);
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  if constexpr (sums) {
    table.size[e] = {rows > 0 ? p.m : 0, p.n, rows};
    table.a[e] = p.a.codes + begin;
    table.b[e] = p.b.codes + begin;
    table.scales_a[e] = p.a.scales + begin / block * p.a.scale_line;
    table.scales_b[e] = p.b.scales + begin / block * p.b.scale_line;
    table.c[e] = p.sum(e);
    table.grid_a[e] = hopper::scale_grid<typename G::ScalesA>(p.m, rows, static_cast<int>(p.a.scale_line));
    table.grid_b[e] = hopper::scale_grid<typename G::ScalesB>(p.n, rows, static_cast<int>(p.b.scale_line));
  } else {
    table.size[e] = {rows, p.n, p.k};
    table.a[e] = p.a.codes + begin * p.a.line;
    table.b[e] = p.member(e);
    table.scales_a[e] = p.a.scales + begin;
    table.scales_b[e] = p.member_scales(e);
    table.c[e] = p.rows + begin * p.n;
    table.grid_a[e] = hopper::scale_grid<typename G::ScalesA>(rows, p.k, static_cast<int>(p.a.scale_line));
    table.grid_b[e] = hopper::scale_grid<typename G::ScalesB>(p.n, p.k, p.member_scale_line);
  }
  table.step_a[e] = stepping<typename Kernel::InternalStrideA>(p.a.line);
  table.step_b[e] = stepping<typename Kernel::InternalStrideB>(sums ? p.b.line : p.k);
  table.step_c[e] = stepping<typename Kernel::InternalStrideD>(p.n);
}

OfRows of_rows(const Operand& factor, std::int64_t line) {
  const Tensor& scales = factor.codes->scales;
  return {static_cast<const Code*>(factor.data.data), scales.as<float>(), line, scales.columns()};
}

template <bool sums>
Problem<sums> problem_of(const Product& product, const Addresses& at) {
  Problem<sums> p{};
  p.a = of_rows(at.a, product.k);
  if constexpr (sums) {
    p.b = of_rows(at.b.list[0], product.k);
    p.sum = pointers_of<float>(at.c);
    p.clears = product.beta == 0;
  } else {
    p.member = pointers_of<const Code>(at.b, [](const Operand& o) { return static_cast<const Code*>(o.data.data); });
    p.member_scales = pointers_of<const float>(at.b, [](const Operand& o) { return o.codes->scales.as<float>(); });
    p.member_scales.stride = at.b.list[0].codes->scales.elements();
    p.member_scale_line = static_cast<int>(at.b.list[0].codes->scales.columns());
    p.rows = static_cast<cutlass::bfloat16_t*>(at.c.list[0].sum.data);
  }
  p.offsets = at.offsets.as<std::int32_t>();
  p.m = static_cast<int>(product.m), p.n = static_cast<int>(product.n), p.k = static_cast<int>(product.k);
  return p;
}

template <bool sums>
void run(Stream& stream, const Product& product, const Addresses& at) {
  using G = Grouped<sums>;
  std::byte* const memory =
      stream.workspace("grouped products", hopper::descriptor_room + Table<sums>::bytes(product.experts));
  if (stream.dry()) return;
  auto* const queue = static_cast<cudaStream_t>(stream.native());
  const Table<sums> table(memory + hopper::descriptor_room, product.experts);
  const Problem<sums> p = problem_of<sums>(product, at);
  const auto experts = static_cast<int>(product.experts);
  const dim3 blocks(p.clears ? hopper::clearing_blocks : 1, static_cast<unsigned>(experts));
  start_kernel(queue, "describe", describe<sums>, {blocks, 128}, p, table);
  typename G::Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGrouped,
      {experts, table.size, nullptr},
      {table.a, table.step_a, table.b, table.step_b, table.scales_a, table.grid_a, table.scales_b, table.grid_b},
      {{}, nullptr, table.step_c, table.c, table.step_c},
      hopper::hardware()};
  arguments.epilogue.thread.alpha = 1;
  arguments.epilogue.thread.beta = product.beta;
  if constexpr (sums) arguments.epilogue.ptr_C = const_cast<const float**>(table.c);
  hopper::start<typename G::Gemm>(queue, arguments, memory);
}

}  // namespace

void multiply_grouped_blocks(Stream& stream, const Product& product, const Addresses& at) {
  const auto data = [](const Operand& o) { return o.data; };
  const auto sum = [](const Gradient& g) { return g.sum; };
  const bool whole =
      reinterpret_cast<std::uintptr_t>(at.a.data.data) % 16 == 0 && begin_whole(at.b, data) && begin_whole(at.c, sum);
  require(whole || stream.dry(), "products of experts in FP8", "factors and results begin at multiples of 16 bytes");
  if (product.form == Form::weight_gradient)
    run<true>(stream, product, at);
  else
    run<false>(stream, product, at);
}

}  // namespace tessera::gemm
