#pragma once
// A product as cuBLASLt wants it described. CUDA builds only; needs no GPU.
#include <cublasLt.h>

#include <memory>

#include "kernels/gemm/lt.hpp"

namespace tessera::gemm {

namespace lt {

/// Throws Error{internal} with the library's words for a status that is no success.
void check(cublasStatus_t status, const char* call);

template <class Pointer, cublasStatus_t (*destroy)(Pointer)>
struct Destroy {
  using pointer = Pointer;
  void operator()(Pointer handle) const { destroy(handle); }
};
template <class Pointer, cublasStatus_t (*destroy)(Pointer)>
using Handle = std::unique_ptr<Pointer, Destroy<Pointer, destroy>>;

}  // namespace lt

/// The library's objects for one product. Its matrices are column-major, so it computes c^T = b^T a^T: the library's A
/// is b, and its B is a. The project's names are used here.
class LtDescription {
 public:
  explicit LtDescription(const Product& p);

  cublasLtMatmulDesc_t product() const { return product_.get(); }
  cublasLtMatrixLayout_t a() const { return a_.get(); }
  cublasLtMatrixLayout_t b() const { return b_.get(); }
  cublasLtMatrixLayout_t c() const { return c_.get(); }

  /// Names the places of bias, aux and scales for the call that follows.
  void place(const LtPlaces& at);

 private:
  template <class T>
  void describe(cublasLtMatmulDescAttributes_t attribute, const T& value);
  void describe_scales(const void* of_a, const void* of_b);

  using Matrix = lt::Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  static Matrix matrix(cudaDataType_t type, std::int64_t rows, std::int64_t columns, Stored stored,
                       std::int64_t distance);

  Matrix a_, b_, c_;
  lt::Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product_;
  bool biased_, auxiliary_, coded_;
};

}  // namespace tessera::gemm
