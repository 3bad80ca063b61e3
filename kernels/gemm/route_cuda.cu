#include <cublasLt.h>
#include <cuda_runtime.h>

#include "kernels/formats/registry.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::gemm {
namespace {

/// Whether cuBLASLt has products of FP8 blocks: it reads fp32 scales of blocks since 12.9, on compute capability 9.0
/// only.
bool has_fp8_blocks() {
  static const bool has = processor() == 90 && cublasLtGetVersion() >= 120900;
  return has;
}

/// It has products of FP8 codes with one scale each on all Hopper GPUs.
bool has_fp8_tensors() {
  static const bool has = processor() == 90;
  return has;
}

/// Products of experts in FP8 come from CUTLASS, if the build has it.
bool has_grouped_fp8() {
#ifdef TESSERA_HOPPER
  static const bool has = processor() == 90;
  return has;
#else
  return false;
#endif
}

constexpr FormatId x = formats::id_of<formats::Fp8BlockOneD>, w = formats::id_of<formats::Fp8Block>;
constexpr FormatId e4m3 = formats::id_of<formats::Fp8Tensor>, e5m2 = formats::id_of<formats::Fp8TensorE5m2>;

bool fp8_blocks(const Product& p) { return p.a == x && p.b == (p.form == Form::weight_gradient ? x : w); }
bool fp8_tensors(const Product& p) { return (p.a == e4m3 || p.a == e5m2) && p.b == e4m3; }

bool is_native(const Product& p) {
  if (p.experts > 0) return (fp8_blocks(p) || fp8_tensors(p)) && has_grouped_fp8() && p.epilogue == Epilogue::none;
  return fp8_blocks(p) ? has_fp8_blocks() : fp8_tensors(p) && has_fp8_tensors();
}

}  // namespace

int processor() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess)
    return 10 * major + minor;
  cudaGetLastError();
  constexpr int built_for[] = {__CUDA_ARCH_LIST__};
  return built_for[0] / 10;
}

// Native products need rows of 16 bytes in the factors and in the result. Scale arrays need a column for every row of a
// factor, padded to a multiple of 4.
Route route_of(const Product& p) {
  const bool whole = p.m % 8 == 0 && p.n % 8 == 0 && p.k % 16 == 0;
  return whole && is_native(p) ? Route::native : Route::decoded;
}

bool native_pair(Form form, FormatId a, FormatId b) {
  const Product p{.form = form, .a = a, .b = b};
  return fp8_blocks(p) ? has_fp8_blocks() || has_grouped_fp8() : fp8_tensors(p) && has_fp8_tensors();
}

}  // namespace tessera::gemm
