// Products of codes as cuBLASLt is asked for them, read back from the library's own objects. Needs the library, no GPU.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include "kernels/formats/registry.hpp"
#include "kernels/gemm/lt_description.cuh"
#include "tests/support/shown.hpp"

namespace tessera::gemm {
namespace {

template <class T>
T attribute(const LtDescription& d, cublasLtMatmulDescAttributes_t name) {
  T value{};
  std::size_t written = 0;
  EXPECT_EQ(cublasLtMatmulDescGetAttribute(d.product(), name, &value, sizeof value, &written), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, sizeof value);
  return value;
}
template <class T>
T attribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name) {
  T value{};
  std::size_t written = 0;
  EXPECT_EQ(cublasLtMatrixLayoutGetAttribute(layout, name, &value, sizeof value, &written), CUBLAS_STATUS_SUCCESS);
  return value;
}

constexpr std::int64_t m = 160, n = 96, k = 224;

/// As gemm_cuda.cu describes it: transposed copies make every form a forward.
Product product(Form form, FormatId a, FormatId b) {
  Product p{.type = DType::bf16, .sum = form == Form::weight_gradient ? DType::f32 : DType::bf16, .form = form, .a = a,
            .b = b, .m = m, .n = n, .k = k};
  p.lda = form == Form::weight_gradient ? m : k;
  p.ldb = form == Form::forward ? k : n;
  p.ldc = n;
  p.scaled = traits_of(a).tensor_amax;
  return p;
}

struct Described {
  FormatId a, b;
  cudaDataType_t type;
  int mode_a, mode_b;
};
template <class A, class B>
constexpr Described described(cudaDataType_t type, int mode) {
  return {formats::id_of<A>, formats::id_of<B>, type, mode, mode};
}

const Described blocks[] = {
    described<formats::Mxfp8, formats::Mxfp8>(CUDA_R_8F_E4M3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0),
    described<formats::Mxfp8, formats::Mxfp8Tiles>(CUDA_R_8F_E4M3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0),
    described<formats::Nvfp4OneD, formats::Nvfp4>(CUDA_R_4F_E2M1, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3),
    described<formats::Nvfp4OneD, formats::Nvfp4OneD>(CUDA_R_4F_E2M1, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3),
    {formats::id_of<formats::Fp8BlockOneD>, formats::id_of<formats::Fp8Block>, CUDA_R_8F_E4M3,
     CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F}};

TEST(LtDescription, NamesScalesAndTypesOfBlocks) {
  for (const Described& wanted : blocks) {
    LtDescription d(product(Form::forward, wanted.a, wanted.b));
    // The library's A is the project's b.
    EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_A_SCALE_MODE), wanted.mode_b);
    EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_B_SCALE_MODE), wanted.mode_a);
    EXPECT_EQ(attribute<std::uint32_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_TYPE), wanted.type);
    EXPECT_EQ(attribute<std::uint32_t>(d.b(), CUBLASLT_MATRIX_LAYOUT_TYPE), wanted.type);
    EXPECT_EQ(attribute<std::uint32_t>(d.c(), CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_16BF);
    const bool on_device = traits_of(wanted.a).tensor_amax;
    EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_POINTER_MODE),
              on_device ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
    EXPECT_EQ(attribute<std::int8_t>(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM), 0);
    EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), CUBLAS_COMPUTE_32F);
    EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_SCALE_TYPE), CUDA_R_32F);
    // None of the result's, which the library refuses with bf16 results.
    EXPECT_EQ(attribute<const void*>(d, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER), nullptr);
    LtPlaces places;
    places.scales_a = reinterpret_cast<const void*>(std::uintptr_t{0x1000});
    places.scales_b = reinterpret_cast<const void*>(std::uintptr_t{0x2000});
    d.place(places);
    EXPECT_EQ(attribute<const void*>(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER), places.scales_b);
    EXPECT_EQ(attribute<const void*>(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER), places.scales_a);
  }
}

/// Transposes and leading dimensions of the library's A and B.
struct Lies {
  cublasOperation_t a, b;
  std::int64_t lda, ldb;
};
void expect(const LtDescription& d, const Lies& wanted) {
  EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_TRANSA), wanted.a);
  EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_TRANSB), wanted.b);
  EXPECT_EQ(attribute<std::int64_t>(d.b(), CUBLASLT_MATRIX_LAYOUT_LD), wanted.lda);
  EXPECT_EQ(attribute<std::int64_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_LD), wanted.ldb);
  EXPECT_EQ(attribute<std::int64_t>(d.c(), CUBLASLT_MATRIX_LAYOUT_LD), n);
}

TEST(LtDescription, LiesAsCodesAreStored) {
  constexpr FormatId mx = formats::id_of<formats::Mxfp8>, nv = formats::id_of<formats::Nvfp4OneD>;
  for (const FormatId format : {mx, nv}) {
    SCOPED_TRACE(test::shown(traits_of(format).name));
    const bool transposed = format == nv;
    const auto lies = [&](Form form) { return LtDescription(as_codes_lie(product(form, format, format))); };
    expect(lies(Form::forward), {CUBLAS_OP_T, CUBLAS_OP_N, k, k});
    expect(lies(Form::input_gradient),
           transposed ? Lies{CUBLAS_OP_T, CUBLAS_OP_N, k, k} : Lies{CUBLAS_OP_N, CUBLAS_OP_N, n, k});
    expect(lies(Form::weight_gradient),
           transposed ? Lies{CUBLAS_OP_T, CUBLAS_OP_N, k, k} : Lies{CUBLAS_OP_N, CUBLAS_OP_T, n, m});
    EXPECT_EQ(attribute<std::uint32_t>(lies(Form::weight_gradient).c(), CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_32F);
  }
}

TEST(LtDescription, BiasIsAnEpilogue) {
  Product p = product(Form::forward, formats::id_of<formats::Nvfp4OneD>, formats::id_of<formats::Nvfp4>);
  p.epilogue = Epilogue::bias;
  LtDescription d(p);
  EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE), CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(attribute<std::int32_t>(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), CUDA_R_16BF);
  LtPlaces places;
  places.bias = reinterpret_cast<const void*>(std::uintptr_t{0x3000});
  d.place(places);
  EXPECT_EQ(attribute<const void*>(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER), places.bias);
}

}  // namespace
}  // namespace tessera::gemm
