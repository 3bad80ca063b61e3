// Products with a fused gelu, or its gradient, on Hopper's tensor cores by CUTLASS. Two groups of warps take tiles in
// turn, so that the epilogue of one runs under the product of the other. Compiled for sm_90a, apart from sources that
// include Kokkos.
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <type_traits>

#include "kernels/gemm/gelu.cuh"
#include "kernels/gemm/gelu.hpp"

namespace tessera::gemm {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;
using hopper::stepping;
using Value = cutlass::bfloat16_t;

/// CUTLASS's kernel: forward (bias, gelu, aux) or input gradient.
template <Form form>
struct WithGelu {
  static constexpr bool forward = form == Form::forward;
  using B = std::conditional_t<forward, ColumnMajor, RowMajor>;
  // The largest tile whose sums leave registers to the epilogue: a thread has 240, the sums take 192.
  using Tile = cute::Shape<cute::_128, cute::_192, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  static constexpr int chunk = 8;  // elements of 16 bytes
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, chunk, Value, RowMajor, chunk,
      cutlass::epilogue::TmaWarpSpecialized, hopper::GeluFusion<forward>>::CollectiveOp;
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Value, RowMajor, chunk, Value, B, chunk, float, Tile,
      Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, MainLoop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

template <Form form>
void run(cudaStream_t stream, const Product& p, const Addresses& at) {
  using G = WithGelu<form>;
  using Kernel = typename G::Kernel;
  const auto value = [](const Tensor& t) { return static_cast<Value*>(t.data); };
  const auto rows = stepping<typename Kernel::StrideD>(p.ldc);
  typename G::Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                        {static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1},
                                        {value(at.a.data), stepping<typename Kernel::StrideA>(p.lda),
                                         value(at.b.list[0].data), stepping<typename Kernel::StrideB>(p.ldb)},
                                        {{}, nullptr, {}, value(at.c.list[0].sum), rows},
                                        hopper::hardware()};
  hopper::place_gelu<G::forward>(arguments.epilogue.thread, at, rows);
  hopper::start<typename G::Gemm>(stream, arguments, nullptr, 0);
}

}  // namespace

void multiply_gelu(Stream& stream, const Product& product, const Addresses& at) {
  if (stream.dry()) return;
  auto* const queue = static_cast<cudaStream_t>(stream.native());
  if (product.form == Form::forward)
    run<Form::forward>(queue, product, at);
  else
    run<Form::input_gradient>(queue, product, at);
}

}  // namespace tessera::gemm
