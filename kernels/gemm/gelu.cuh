#pragma once
// Epilogues of CUTLASS's kernels that apply a gelu, or its gradient, to a product's sums. For sources compiled for
// sm_90a only.
#include <cutlass/array.h>
#include <cutlass/layout/matrix.h>
#include <cutlass/numeric_types.h>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <type_traits>

#include "kernels/activation/by_instructions.cuh"
#include "kernels/gemm/hopper.cuh"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm::hopper {

/// gelu(x), of a number or of each element of a CUTLASS array.
template <class T>
struct Gelu {
  __device__ T operator()(const T& x) const { return activation::fast_gelu(x); }
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

/// d gelu'(x), of numbers or of each element of CUTLASS arrays.
template <class T>
struct GeluGradient {
  __device__ T operator()(const T& d, const T& x) const { return d * activation::fast_gelu_slope(x); }
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

/// The fused epilogue, computed in fp32, for bf16 results. Forward: the bias is added, that sum is stored as aux, its
/// gelu as the result. Backward: the input gradient times gelu'(aux).
template <bool forward>
using GeluFusion = std::conditional_t<
    forward,
    cutlass::epilogue::fusion::LinCombPerColBiasEltActAux<cutlass::layout::RowMajor, Gelu, cutlass::bfloat16_t, float,
                                                          cutlass::bfloat16_t, cutlass::bfloat16_t, void>,
    cutlass::epilogue::fusion::LinCombDeEltAct<cutlass::layout::RowMajor, GeluGradient, cutlass::bfloat16_t, float,
                                               cutlass::bfloat16_t, void>>;

/// Sets the addresses that the epilogue reads and writes: aux and, in forward, the bias.
template <bool forward, class Arguments, class Rows>
void place_gelu(Arguments& fusion, const Addresses& at, const Rows& rows) {
  fusion.aux_ptr = static_cast<cutlass::bfloat16_t*>(at.aux.data);
  fusion.dAux = rows;
  if constexpr (forward) fusion.bias_ptr = static_cast<cutlass::bfloat16_t*>(at.bias.data);
}

}  // namespace tessera::gemm::hopper
