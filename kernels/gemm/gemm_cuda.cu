#include <cublas_v2.h>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/gemm/back.hpp"

// cuBLAS takes columns first, so a row-major matrix is handed over as its transpose.
namespace tessera::gemm {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) refuse(call, cublasGetStatusString(status));
}

/// A stream's handle, with which the stream orders its work.
struct Library {
  cublasHandle_t handle = nullptr;
  Library() { check(cublasCreate(&handle), "cublasCreate"); }
  ~Library() { cublasDestroy(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

cudaDataType_t cuda_type(DType type) {
  return type == DType::f64 ? CUDA_R_64F : type == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// c [n,m] = beta c + op(a) op(b) with columns first.
void multiply(Stream& stream, cublasOperation_t ta, cublasOperation_t tb, std::int64_t m, std::int64_t n, std::int64_t k,
              const Tensor& a, std::int64_t lda, const Tensor& b, std::int64_t ldb, const Tensor& c, std::int64_t ldc, float beta) {
  const cublasHandle_t handle = stream.library<Library>().handle;
  check(cublasSetStream(handle, space_of(stream).cuda_stream()), "cublasSetStream");
  const bool wide = a.type == DType::f64;
  const double one64 = 1, beta64 = beta;
  const float one32 = 1;
  const void* alpha = wide ? static_cast<const void*>(&one64) : &one32;
  const void* scale = wide ? static_cast<const void*>(&beta64) : &beta;
  // fp32 stays fp32: no TF32.
  const cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  check(cublasGemmEx(handle, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a.data, cuda_type(a.type),
                     static_cast<int>(lda), b.data, cuda_type(b.type), static_cast<int>(ldb), scale, c.data, cuda_type(c.type),
                     static_cast<int>(ldc), compute, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

/// Every row of y = bias: the product is added to it inside the GEMM, so that the sum is rounded once.
template <class T> void broadcast(Stream& stream, const Tensor& y, const Tensor& bias) {
  const std::int64_t columns = y.columns();
  T* out = y.as<T>();
  const T* b = bias.as<T>();
  launch(stream, "broadcast_bias", y.elements(), KOKKOS_LAMBDA(std::int64_t i) { out[i] = b[i % columns]; });
}

template <class T> void activate(Stream& stream, const Tensor& y, const Tensor& pre) {
  T* out = y.as<T>();
  const T* in = pre.as<T>();
  launch(stream, "gelu", y.elements(), KOKKOS_LAMBDA(std::int64_t i) { out[i] = T(gelu_of(Accumulator<T>(in[i]))); });
}

/// Pointers of all experts' matrices, small enough to travel with the launch.
template <class P> struct Pointers {
  static constexpr std::int64_t most = 32;
  P* first = nullptr;
  std::int64_t stride = 0;
  P* each[most] = {};
  KOKKOS_FUNCTION P* operator()(std::int64_t e) const { return first ? first + e * stride : each[e]; }
};

template <class T> Pointers<T> pointers_of(const ExpertOperands& w) {
  if (w.count == 1) return {w.weights[0].data.as<T>(), w.weights[0].member_stride, {}};
  require(w.count <= Pointers<T>::most, "expert product", "at most 32 discrete experts on a GPU: use weights: single");
  Pointers<T> p;
  for (int e = 0; e < w.count; ++e) p.each[e] = w.weights[e].data.as<T>();
  return p;
}

KOKKOS_INLINE_FUNCTION std::int64_t expert_of_row(const std::int32_t* offsets, std::int64_t row) {
  std::int64_t e = 0;
  while (offsets[e + 1] <= row) ++e;
  return e;
}

template <class T> void expert_product(Stream& stream, const Tensor& y, const Tensor& x, const ExpertOperands& w, const Tensor& offsets,
                                       std::int64_t row_step, std::int64_t column_step) {
  using A = Accumulator<T>;
  const Pointers<T> weights = pointers_of<T>(w);
  const std::int64_t n = y.columns(), k = x.columns();
  T* out = y.as<T>();
  const T* in = x.as<T>();
  const std::int32_t* begins = offsets.as<std::int32_t>();
  launch_rows(stream, "expert_product", y.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const T* matrix = weights(expert_of_row(begins, r));
    row.each(n, [&](std::int64_t j) {
      A sum = 0;
      for (std::int64_t i = 0; i < k; ++i) sum += A(in[r * k + i]) * A(matrix[j * row_step + i * column_step]);
      out[r * n + j] = T(sum);
    });
  });
}

}  // namespace

void forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& x, const Operand& w, const Tensor& bias) {
  const std::int64_t m = x.rows(), n = y.columns(), k = x.columns();
  const Tensor& sum = pre ? pre : y;
  if (bias) dispatch_real(y.type, "linear_forward", [&]<class T>() { broadcast<T>(stream, sum, bias); });
  multiply(stream, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, w.data, k, x, k, sum, n, bias ? 1.0f : 0.0f);
  if (pre) dispatch_real(y.type, "linear_forward", [&]<class T>() { activate<T>(stream, y, pre); });
}

void input_gradient(Stream& stream, const Tensor& dx, const Tensor& dy, const Operand& w) {
  const std::int64_t m = dy.rows(), n = dy.columns(), k = dx.columns();
  multiply(stream, CUBLAS_OP_N, CUBLAS_OP_N, k, m, n, w.data, k, dy, n, dx, k, 0);
}

void weight_gradient(Stream& stream, const Gradient& dw, const Tensor& dy, const Tensor& x) {
  const std::int64_t m = x.rows(), n = dy.columns(), k = x.columns();
  multiply(stream, CUBLAS_OP_N, CUBLAS_OP_T, k, n, m, x, k, dy, n, dw.sum, k, dw.beta);
}

template <class T> static void column_sums(Stream& stream, const Gradient& db, const Tensor& dy) {
  using A = Accumulator<T>;
  A* sum = db.sum.as<A>();
  const T* in = dy.as<T>();
  const std::int64_t rows = dy.rows(), columns = dy.columns();
  const float beta = db.beta;
  launch(stream, "bias_gradient", columns, KOKKOS_LAMBDA(std::int64_t c) {
    A total = 0;
    for (std::int64_t r = 0; r < rows; ++r) total += A(in[r * columns + c]);
    sum[c] = beta == 0 ? total : A(beta * sum[c] + total);
  });
}

void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy) {
  dispatch_real(dy.type, "bias_gradient", [&]<class T>() { column_sums<T>(stream, db, dy); });
}

void expert_forward(Stream& stream, const Tensor& y, const Tensor& x, const ExpertOperands& w, const Tensor& offsets) {
  dispatch_real(x.type, "expert_forward", [&]<class T>() { expert_product<T>(stream, y, x, w, offsets, x.columns(), 1); });
}

void expert_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dy, const ExpertOperands& w, const Tensor& offsets) {
  dispatch_real(dy.type, "expert_input_gradient", [&]<class T>() { expert_product<T>(stream, dx, dy, w, offsets, 1, dx.columns()); });
}

template <class T> static void expert_outer(Stream& stream, const Gradient& dw, std::int64_t e, const Tensor& dy, const Tensor& x,
                                            const Tensor& offsets, bool rounded) {
  using A = Accumulator<T>;
  A* sum = dw.sum.as<A>();
  const T *gradient = dy.as<T>(), *in = x.as<T>();
  const std::int32_t* begins = offsets.as<std::int32_t>();
  const std::int64_t n = dy.columns(), k = x.columns();
  const float beta = dw.beta;
  launch_rows(stream, "expert_weight_gradient", n, KOKKOS_LAMBDA(const Row& row, std::int64_t j) {
    row.each(k, [&](std::int64_t i) {
      A total = 0;
      for (std::int64_t r = begins[e]; r < begins[e + 1]; ++r) total += A(gradient[r * n + j]) * A(in[r * k + i]);
      if (rounded) total = A(T(total));
      sum[j * k + i] = beta == 0 ? total : A(beta * sum[j * k + i] + total);
    });
  });
}

void expert_weight_gradient(Stream& stream, const ExpertGradients& dw, const Tensor& dy, const Tensor& x, const Tensor& offsets,
                            const Tensor& scratch) {
  for (std::int64_t e = 0; e + 1 < offsets.elements(); ++e)
    dispatch_real(x.type, "expert_weight_gradient",
                  [&]<class T>() { expert_outer<T>(stream, dw.expert(e), e, dy, x, offsets, static_cast<bool>(scratch)); });
}

}  // namespace tessera::gemm
