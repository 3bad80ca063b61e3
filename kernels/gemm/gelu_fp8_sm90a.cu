// Products of FP8 blocks with a fused gelu, or its gradient, on Hopper's tensor cores by CUTLASS: sums of 128 codes are
// multiplied by their two scales and added up in fp32. Compiled for sm_90a, apart from sources that include Kokkos.
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/detail/blockwise_scale_layout.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "kernels/gemm/gelu.cuh"
#include "kernels/gemm/gelu.hpp"

namespace tessera::gemm {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;
using Code = cutlass::float_e4m3_t;
using Value = cutlass::bfloat16_t;
using hopper::block;

/// CUTLASS's kernel: forward (bias, gelu, aux) or input gradient. The summed dimension is contiguous in both factors'
/// codes. Scales of a's rows are neighbours, one line of them per block of the sum; scales of weights lie as their
/// blocks do.
template <bool forward>
struct WithGelu {
  using Tile = cute::Shape<cute::_128, cute::_128, cute::Int<block>>;
  using Cluster = cute::Shape<cute::_1, cute::_2, cute::_1>;
  static constexpr int chunk = 16, value_chunk = 8;  // elements of 16 bytes
  using Scales =
      cutlass::detail::Sm90BlockwiseScaleConfig<1, block, block, cute::GMMA::Major::MN, cute::GMMA::Major::K>;
  using ScalesA = decltype(Scales::deduce_layoutSFA());
  using ScalesB = decltype(Scales::deduce_layoutSFB());
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, value_chunk, Value, RowMajor,
      value_chunk, cutlass::epilogue::TmaWarpSpecializedCooperative, hopper::GeluFusion<forward>>::CollectiveOp;
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Code, cute::tuple<RowMajor, ScalesA>, chunk, Code,
      cute::tuple<ColumnMajor, ScalesB>, chunk, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8Blockwise>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, MainLoop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

template <bool forward>
void run(cudaStream_t stream, const Product& p, const Places& at) {
  using G = WithGelu<forward>;
  using Kernel = typename G::Kernel;
  const auto code = [](const Operand& o) { return static_cast<const Code*>(o.data.data); };
  const auto line = [](const Tensor& scales) { return static_cast<int>(scales.columns()); };
  const Operand &a = at.a, &b = at.b.list[0];
  const Tensor &scales_a = a.codes->scales, &scales_b = b.codes->scales;
  const auto rows = hopper::stepping<typename Kernel::StrideD>(p.n);
  typename G::Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1},
      {code(a), hopper::stepping<typename Kernel::StrideA>(p.k), code(b),
       hopper::stepping<typename Kernel::StrideB>(p.k), scales_a.as<float>(),
       hopper::scale_grid<typename G::ScalesA>(static_cast<int>(p.m), static_cast<int>(p.k), line(scales_a)),
       scales_b.as<float>(),
       hopper::scale_grid<typename G::ScalesB>(static_cast<int>(p.n), static_cast<int>(p.k), line(scales_b))},
      {{}, nullptr, {}, static_cast<Value*>(at.c.list[0].sum.data), rows},
      hopper::hardware()};
  hopper::place_gelu<forward>(arguments.epilogue.thread, at, rows);
  hopper::start<typename G::Gemm>(stream, arguments, nullptr);
}

}  // namespace

void multiply_gelu_blocks(Stream& stream, const Product& product, const Places& at) {
  if (stream.dry()) return;
  auto* const queue = static_cast<cudaStream_t>(stream.native());
  if (product.epilogue == Epilogue::dgelu)
    run<false>(queue, product, at);
  else
    run<true>(queue, product, at);
}

}  // namespace tessera::gemm
