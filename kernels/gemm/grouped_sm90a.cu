// Products of experts on Hopper's tensor cores by CUTLASS's grouped kernels (TMA, wgmma, persistent blocks in pairs).
// There is one launch for all experts, whose rows are counted on the device. Compiled for sm_90a, apart from sources
// that include Kokkos.
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

namespace tessera::gemm {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;
using hopper::check;
using hopper::Size;
using hopper::stepping;

/// CUTLASS's kernel of one form. Weight gradients are fp32 and read the old sum for beta; the other forms read no c.
template <Form form>
struct Grouped {
  static constexpr bool sums = form == Form::weight_gradient;
  using Value = cutlass::bfloat16_t;
  using Sum = std::conditional_t<sums, float, Value>;
  using Source = std::conditional_t<sums, float, void>;
  using A = std::conditional_t<sums, ColumnMajor, RowMajor>;
  using B = std::conditional_t<form == Form::forward, ColumnMajor, RowMajor>;
  using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  static constexpr int a_chunk = 8, sum_chunk = 16 / sizeof(Sum);  // elements of 16 bytes

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, RowMajor*, sum_chunk, Sum, RowMajor*,
      sum_chunk, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
      cutlass::epilogue::fusion::LinearCombination<Sum, float, Source>>::CollectiveOp;
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Value, A*, a_chunk, Value, B*, a_chunk, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Size>, MainLoop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

/// The arguments of CUTLASS's grouped kernel: arrays on the device with one entry per product.
template <Form form>
struct Table {
  using G = Grouped<form>;
  using Kernel = typename G::Kernel;

  Size* size;
  const typename G::Value **a, **b;
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

/// One product with its experts, as product.hpp describes it.
template <Form form>
struct Problem {
  using Value = typename Grouped<form>::Value;
  using Sum = typename Grouped<form>::Sum;
  static constexpr bool sums = Grouped<form>::sums;
  const Value* a;
  std::conditional_t<sums, const Value*, Sum*> rows;       ///< all experts' rows: b of weight gradients, else c
  Pointers<std::conditional_t<sums, float, bf16>> member;  ///< each expert's own: c of weight gradients, else b
  const std::int32_t* offsets;
  int m, n, k;
  bool clears;  ///< experts without rows get gradients of 0 (beta 0) instead of keeping theirs
};

/// Block (., e) writes the arguments of expert e's product, of size 0 if it has no rows; the blocks of one e share the
/// clearing of its gradient.
template <Form form>
__global__ void describe(const __grid_constant__ Problem<form> p, const __grid_constant__ Table<form> table) {
  using Kernel = typename Grouped<form>::Kernel;
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t begin = p.offsets[e], rows = p.offsets[e + 1] - begin;
  if constexpr (form == Form::weight_gradient)
    if (p.clears && rows == 0) hopper::clear(p.member(e), std::int64_t{p.m} * p.n);
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  const auto count = static_cast<int>(rows);
  if constexpr (form == Form::weight_gradient) {
    table.size[e] = {count > 0 ? p.m : 0, p.n, count};
    table.a[e] = p.a + begin * p.m;
    table.b[e] = p.rows + begin * p.n;
    table.c[e] = p.member(e);
  } else {
    table.size[e] = {count, p.n, p.k};
    table.a[e] = p.a + begin * p.k;
    table.b[e] = reinterpret_cast<const typename Grouped<form>::Value*>(p.member(e));
    table.c[e] = p.rows + begin * p.n;
  }
  table.step_a[e] = stepping<typename Kernel::InternalStrideA>(form == Form::weight_gradient ? p.m : p.k);
  table.step_b[e] = stepping<typename Kernel::InternalStrideB>(form == Form::forward ? p.k : p.n);
  table.step_c[e] = stepping<typename Kernel::InternalStrideD>(p.n);
}

template <Form form>
Problem<form> problem_of(const Product& product, const Addresses& at) {
  using Value = typename Grouped<form>::Value;
  using Sum = typename Grouped<form>::Sum;
  Problem<form> p{};
  p.a = static_cast<const Value*>(at.a.data.data);
  if constexpr (form == Form::weight_gradient) {
    p.rows = static_cast<const Value*>(at.b.list[0].data.data);
    p.member = pointers_of<float>(at.c);
  } else {
    p.rows = static_cast<Sum*>(at.c.list[0].sum.data);
    p.member = pointers_of<bf16>(at.b);
  }
  p.offsets = at.offsets.as<std::int32_t>();
  p.m = static_cast<int>(product.m), p.n = static_cast<int>(product.n), p.k = static_cast<int>(product.k);
  p.clears = form == Form::weight_gradient && product.beta == 0;
  return p;
}

template <Form form>
void run(cudaStream_t stream, std::byte* memory, const Product& product, const Addresses& at) {
  using G = Grouped<form>;
  const Table<form> table(memory + hopper::descriptor_room, product.experts);
  const Problem<form> p = problem_of<form>(product, at);
  const auto experts = static_cast<int>(product.experts);
  const dim3 blocks(p.clears ? hopper::clearing_blocks : 1, static_cast<unsigned>(experts));
  start_kernel(stream, "describe", describe<form>, {blocks, 128}, p, table);
  typename G::Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGrouped,
                                        {experts, table.size, nullptr},
                                        {table.a, table.step_a, table.b, table.step_b},
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
  hopper::start<typename G::Gemm>(stream, arguments, memory);
}

bool whole(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; }

/// Whether every matrix begins at a multiple of 16 bytes, which TMA demands.
bool lies_whole(const Addresses& at) {
  const auto value = [](const Operand& o) { return o.data; };
  const auto sum = [](const Gradient& g) { return g.sum; };
  return whole(at.a.data) && begin_whole(at.b, value) && begin_whole(at.c, sum);
}

bool fits(const Product& p) {
  const bool sums = p.form == Form::weight_gradient;
  return p.type == DType::bf16 && p.sum == (sums ? DType::f32 : DType::bf16) && p.epilogue == Epilogue::none &&
         (p.beta == 0 || p.beta == 1) && p.n % 8 == 0 && (sums ? p.m : p.k) % 8 == 0;
}

}  // namespace

bool multiply_grouped(Stream& stream, const Product& product, const Addresses& at) {
  if (!fits(product)) return false;
  const std::int64_t bytes = hopper::descriptor_room + table_bytes(product.experts);
  std::byte* const memory = stream.workspace("grouped products", bytes);
  if (stream.dry()) return true;
  if (!lies_whole(at)) return false;
  auto* const queue = static_cast<cudaStream_t>(stream.native());
  switch (product.form) {
    case Form::forward:
      run<Form::forward>(queue, memory, product, at);
      break;
    case Form::input_gradient:
      run<Form::input_gradient>(queue, memory, product, at);
      break;
    case Form::weight_gradient:
      run<Form::weight_gradient>(queue, memory, product, at);
      break;
  }
  return true;
}

}  // namespace tessera::gemm
