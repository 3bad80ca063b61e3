#include "kernels/gemm/lt_description.cuh"

#include <type_traits>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera::gemm {
namespace {

cudaDataType_t cuda_type(DType type) {
  return type == DType::f64 ? CUDA_R_64F : type == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

cudaDataType_t cuda_type(DType type, const std::optional<FormatId>& codes) {
  if (!codes) return cuda_type(type);
  return visit_format(*codes, []<class F>() {
    if (std::is_same_v<typename F::Element, formats::E2M1>) return CUDA_R_4F_E2M1;
    return std::is_same_v<typename F::Element, formats::E5M2> ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
  });
}

/// How cuBLASLt finds the scale of an element of `format`. A tensor's scale is a part of alpha.
cublasLtMatmulMatrixScale_t scaling_of(FormatId format) {
  if (format == formats::id_of<formats::Fp8Block>) return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  if (format == formats::id_of<formats::Fp8BlockOneD>) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const FormatTraits traits = traits_of(format);
  if (!traits.scaled && traits.tensor_amax) return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const bool bytes = visit_format(format, []<class F>() { return formats::swizzles<F>(); });
  require(bytes && (traits.block.columns == 32 || traits.block.columns == 16), "cuBLASLt",
          "multiplies codes of FP8, MXFP8 and NVFP4 alone");
  return traits.block.columns == 32 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
                                    : CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
}

cublasLtEpilogue_t code_of(Epilogue epilogue) {
  constexpr cublasLtEpilogue_t codes[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
                                          CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
  return codes[static_cast<int>(epilogue)];
}

/// An address named for scales: cuBLASLt offers algorithms only for descriptions that name scales, but reads them
/// only when the product runs.
const void* const somewhere = reinterpret_cast<const void*>(std::uintptr_t{256});

}  // namespace

Product as_codes_lie(Product p) {
  if (traits_of(*p.a).columnwise_order == formats::Order::as_source) return p;
  p.form = Form::forward;
  p.lda = p.ldb = p.k;
  return p;
}

void lt::check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) refuse(call, cublasLtGetStatusString(status));
}

// A row-major matrix is described as its transpose.
LtDescription::Matrix LtDescription::matrix(cudaDataType_t type, std::int64_t rows, std::int64_t columns, Stored stored,
                                            std::int64_t distance) {
  if (stored == Stored::transposed) std::swap(rows, columns);
  cublasLtMatrixLayout_t made = nullptr;
  lt::check(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(columns),
                                       static_cast<std::uint64_t>(rows), distance),
            "cublasLtMatrixLayoutCreate");
  return Matrix(made);
}

template <class T>
void LtDescription::describe(cublasLtMatmulDescAttributes_t attribute, const T& value) {
  lt::check(cublasLtMatmulDescSetAttribute(product_.get(), attribute, &value, sizeof value),
            "cublasLtMatmulDescSetAttribute");
}

void LtDescription::describe_scales(const void* of_a, const void* of_b) {
  describe(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
  describe(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
}

LtDescription::LtDescription(const Product& p)
    : a_(matrix(cuda_type(p.type, p.a), p.m, p.k, p.stored_a(), p.lda)),
      b_(matrix(cuda_type(p.type, p.b), p.k, p.n, p.stored_b(), p.ldb)),
      c_(matrix(cuda_type(p.sum), p.m, p.n, Stored::plain, p.ldc)),
      biased_(p.biased()),
      auxiliary_(p.epilogue == Epilogue::gelu || p.epilogue == Epilogue::bias_gelu || p.epilogue == Epilogue::dgelu),
      coded_(p.a && traits_of(*p.a).scaled) {
  const bool wide = p.type == DType::f64;
  cublasLtMatmulDesc_t made = nullptr;
  lt::check(cublasLtMatmulDescCreate(&made, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                     wide ? CUDA_R_64F : CUDA_R_32F),
            "cublasLtMatmulDescCreate");
  product_.reset(made);
  describe(CUBLASLT_MATMUL_DESC_TRANSA, p.stored_b() == Stored::plain ? CUBLAS_OP_N : CUBLAS_OP_T);
  describe(CUBLASLT_MATMUL_DESC_TRANSB, p.stored_a() == Stored::plain ? CUBLAS_OP_N : CUBLAS_OP_T);
  describe(CUBLASLT_MATMUL_DESC_EPILOGUE, code_of(p.epilogue));
  if (p.scaled) describe(CUBLASLT_MATMUL_DESC_POINTER_MODE, std::int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  if (biased_) describe(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.type));
  if (auxiliary_) describe(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
  // Never fast accumulation, whose sums of 16384 terms are off by a tenth; the rest of Tessera relies on it.
  describe(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
  if (!coded_) return;
  describe(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scaling_of(*p.b));
  describe(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scaling_of(*p.a));
  describe_scales(somewhere, somewhere);
}

void LtDescription::place(const LtPlaces& at) {
  if (biased_) describe(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
  if (auxiliary_) describe(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at.aux);
  if (coded_) describe_scales(at.scales_a, at.scales_b);
}

}  // namespace tessera::gemm
