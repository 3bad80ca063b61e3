// Products with a gelu, or its gradient, behind them, on Hopper's tensor cores by CUTLASS: two groups of warps take
// tiles in turn, so that one's epilogue runs under the other's product. Compiled for sm_90a, apart from what includes
// Kokkos.
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <type_traits>

#include "kernels/gemm/gelu.hpp"

namespace tessera::gemm {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;
using Value = cutlass::bfloat16_t;

/// sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), by the GPU's exponential and reciprocal: good to bf16's digits.
__device__ inline float slope_of(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * (-2.302208198f + -0.1029432397f * x * x)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return inverse;
}

/// x sigmoid(2u), tanh's form of a gelu; of CUTLASS's arrays too.
template <class T>
struct Gelu {
  __device__ T operator()(const T& x) const { return x * slope_of(x); }
};
template <class T, int n>
struct Gelu<cutlass::Array<T, n>> {
  __device__ cutlass::Array<T, n> operator()(const cutlass::Array<T, n>& x) const {
    cutlass::Array<T, n> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < n; ++i) y[i] = Gelu<T>()(x[i]);
    return y;
  }
};

/// d gelu'(x) = d (s + x s (1 - s) 2u') with s = sigmoid(2u).
template <class T>
struct GeluGradient {
  __device__ T operator()(const T& d, const T& x) const {
    const float s = slope_of(x);
    return d * (s + x * s * (1.0f - s) * (1.5957691216f + 0.2140644488f * x * x));
  }
};
template <class T, int n>
struct GeluGradient<cutlass::Array<T, n>> {
  __device__ cutlass::Array<T, n> operator()(const cutlass::Array<T, n>& d, const cutlass::Array<T, n>& x) const {
    cutlass::Array<T, n> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < n; ++i) y[i] = GeluGradient<T>()(d[i], x[i]);
    return y;
  }
};

/// CUTLASS's kernel: forward with its bias and what lies before the gelu, or an input gradient.
template <Form form>
struct WithGelu {
  static constexpr bool forward = form == Form::forward;
  using B = std::conditional_t<forward, ColumnMajor, RowMajor>;
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  static constexpr int chunk = 8;  // elements of 16 bytes
  using Fusion = std::conditional_t<
      forward, cutlass::epilogue::fusion::LinCombPerColBiasEltActAux<RowMajor, Gelu, Value, float, Value, Value, void>,
      cutlass::epilogue::fusion::LinCombDeEltAct<RowMajor, GeluGradient, Value, float, Value, void>>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, chunk, Value, RowMajor, chunk,
      cutlass::epilogue::TmaWarpSpecialized, Fusion>::CollectiveOp;
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Value, RowMajor, chunk, Value, B, chunk, float, Tile,
      Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, MainLoop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

/// The stride of one matrix in memory: `distance` from one row, or column, to the next.
template <class Stride>
Stride stepping(std::int64_t distance) {
  Stride s;
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(cute::get<0>(s))>, std::int64_t>)
    cute::get<0>(s) = distance;
  else
    cute::get<1>(s) = distance;
  return s;
}

void check(bool succeeded, const char* call) {
  if (!succeeded) refuse("product with a gelu", call);
}

template <Form form>
void run(cudaStream_t stream, const Product& p, const Places& at) {
  using G = WithGelu<form>;
  using Kernel = typename G::Kernel;
  cutlass::KernelHardwareInfo hardware;
  check(cudaGetDevice(&hardware.device_id) == cudaSuccess, "cudaGetDevice");
  check(cudaDeviceGetAttribute(&hardware.sm_count, cudaDevAttrMultiProcessorCount, hardware.device_id) == cudaSuccess,
        "cudaDeviceGetAttribute");
  const auto value = [](const Tensor& t) { return static_cast<Value*>(t.data); };
  const auto rows = stepping<typename Kernel::StrideD>(p.ldc);
  typename G::Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                        {static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1},
                                        {value(at.a.data), stepping<typename Kernel::StrideA>(p.lda),
                                         value(at.b.list[0].data), stepping<typename Kernel::StrideB>(p.ldb)},
                                        {{}, nullptr, {}, value(at.c.list[0].sum), rows},
                                        hardware};
  auto& fusion = arguments.epilogue.thread;
  fusion.aux_ptr = value(at.aux);
  fusion.dAux = rows;
  if constexpr (G::forward) fusion.bias_ptr = value(at.bias);
  typename G::Gemm gemm;
  check(G::Gemm::get_workspace_size(arguments) == 0, "workspace");
  check(gemm.can_implement(arguments) == cutlass::Status::kSuccess, "can_implement");
  check(gemm.initialize(arguments, nullptr, stream) == cutlass::Status::kSuccess, "initialize");
  check(gemm.run(stream) == cutlass::Status::kSuccess, "run");
}

}  // namespace

void multiply_gelu(Stream& stream, const Product& product, const Places& at) {
  if (stream.dry()) return;
  auto* const queue = static_cast<cudaStream_t>(stream.native());
  if (product.form == Form::forward)
    run<Form::forward>(queue, product, at);
  else
    run<Form::input_gradient>(queue, product, at);
}

}  // namespace tessera::gemm
