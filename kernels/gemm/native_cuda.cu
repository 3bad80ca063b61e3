#include "kernels/gemm/native.hpp"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "kernels/formats/registry.hpp"
#include "kernels/gemm/back.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::gemm {
namespace {

constexpr FormatId x = formats::id_of<formats::Fp8BlockOneD>, w = formats::id_of<formats::Fp8Block>;
constexpr FormatId e4m3 = formats::id_of<formats::Fp8Tensor>, e5m2 = formats::id_of<formats::Fp8TensorE5m2>;

bool fp8_blocks(const Kind& k) { return k.a == x && k.b == (k.form == Form::weight_gradient ? x : w); }
bool fp8_tensors(const Kind& k) { return (k.a == e4m3 || k.a == e5m2) && k.b == e4m3; }
bool mxfp8(FormatId f) { return f == formats::id_of<formats::Mxfp8> || f == formats::id_of<formats::Mxfp8Tiles>; }
bool nvfp4(FormatId f) { return f == formats::id_of<formats::Nvfp4> || f == formats::id_of<formats::Nvfp4OneD>; }

/// Whether the build has CUTLASS's kernels for experts.
#ifdef TESSERA_HOPPER
constexpr bool has_grouped = true;
#else
constexpr bool has_grouped = false;
#endif

/// Dense products by cuBLASLt, those of experts by CUTLASS.
class TensorCores final : public NativeLibrary {
 public:
  Standing standing(const Kind& kind) const override {
    if (processor_ == 90) return hopper(kind) ? Standing::proven : Standing::none;
    return blackwell(kind) ? Standing::claimed : Standing::none;
  }
  bool multiply(Stream& stream, const Product& product, const Addresses& places) override {
    return gemm::multiply(stream, product, places);
  }

 private:
  /// cuBLASLt reads fp32 scales of blocks since 12.9, on compute capability 9.0 only.
  bool hopper(const Kind& kind) const {
    if (kind.rows == Rows::by_expert) return has_grouped && (fp8_blocks(kind) || fp8_tensors(kind));
    return fp8_tensors(kind) || (fp8_blocks(kind) && version_ >= 120900);
  }
  /// It has block scaling on compute capabilities 10.0 and 10.3, and one scale a matrix on 12.0 too. The first releases
  /// that have it, 12.8, confuse products that differ in their scales' pointers alone.
  bool blackwell(const Kind& kind) const {
    if (kind.rows == Rows::by_expert || version_ < 120900) return false;
    const bool datacenter = processor_ == 100 || processor_ == 103;
    if (fp8_tensors(kind)) return datacenter || processor_ == 120;
    return datacenter && ((mxfp8(kind.a) && mxfp8(kind.b)) || (nvfp4(kind.a) && nvfp4(kind.b)));
  }

  int processor_ = processor();
  std::size_t version_ = cublasLtGetVersion();
};

}  // namespace

NativeLibrary& own_library() {
  static TensorCores library;
  return library;
}

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

}  // namespace tessera::gemm
