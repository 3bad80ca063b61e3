#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>

#include "kernels/formats/registry.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::gemm {
namespace {

/// The first cuBLASLt whose products read fp32 scales of blocks, and the only processor for which it has them.
bool has_fp8_blocks() {
  static const bool has = processor() == 90 && cublasLtGetVersion() >= 120900;
  return has;
}

/// Of experts CUTLASS has them, where the build has CUTLASS.
bool has_grouped_fp8_blocks() {
#ifdef TESSERA_HOPPER
  static const bool has = processor() == 90;
  return has;
#else
  return false;
#endif
}

bool fp8_blocks(const Product& p) {
  const FormatId x = formats::id_of<formats::Fp8BlockOneD>, w = formats::id_of<formats::Fp8Block>;
  return p.a == x && p.b == (p.form == Form::weight_gradient ? x : w);
}

/// Weight gradients for which the library's first choice takes longer than decoding and a product in bf16, on an H200.
/// tests/bench/results/fp8_products_h200.md has all shapes.
struct Sizes {
  std::int64_t m, n, k;
  bool operator==(const Sizes&) const = default;
};
constexpr Sizes declined[] = {
    {1600, 1600, 16384},  // 192 us; 115, and 40 to decode, by bytes
    {3840, 1280, 16384},  // 288 us; 214, and 65
};

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

// Rows of the factors of 16 bytes, of the result of 16; scales have a column for every row of a factor, in fours.
Route route_of(const Product& p) {
  const bool whole = p.m % 8 == 0 && p.n % 8 == 0 && p.k % 16 == 0;
  const bool slower = p.form == Form::weight_gradient &&
                      std::find(std::begin(declined), std::end(declined), Sizes{p.m, p.n, p.k}) != std::end(declined);
  const bool native =
      p.experts == 0 ? has_fp8_blocks() && !slower : has_grouped_fp8_blocks() && p.epilogue == Epilogue::none;
  return fp8_blocks(p) && whole && native ? Route::native : Route::decoded;
}

}  // namespace tessera::gemm
