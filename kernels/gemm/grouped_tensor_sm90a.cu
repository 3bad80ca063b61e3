// Products of experts whose factors are FP8 codes with one scale each, on Hopper's tensor cores. These add sums of a
// few codes up in fp32. The scales make an alpha.
#include "kernels/formats/registry.hpp"
#include "kernels/gemm/grouped.cuh"

namespace tessera::gemm {
namespace {

using E4M3 = cutlass::float_e4m3_t;
using E5M2 = cutlass::float_e5m2_t;

/// A kernel for a factor a of A codes. The summed dimension is contiguous in both factors. Its schedule is one without
/// "FastAccum": tensor cores keep too few bits of a sum for long ones.
template <bool sums, class A>
using Multiplier = grouped::Multiplier<sums, grouped::Factor<A, grouped::RowMajor>,
                                   grouped::Factor<E4M3, grouped::ColumnMajor>,
                                   cute::Shape<cute::_128, cute::_128, cute::_128>,
                                   cute::Shape<cute::_2, cute::_1, cute::_1>,
                                   cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>;

template <class A>
void run(Stream& stream, const Product& product, const Addresses& at) {
  if (product.form == Form::weight_gradient)
    grouped::run<Multiplier<true, A>>(stream, product, at);
  else
    grouped::run<Multiplier<false, A>>(stream, product, at);
}

}  // namespace

void multiply_grouped_tensors(Stream& stream, const Product& product, const Addresses& at) {
  require(stream.dry() || grouped::lie_whole(at), "products of experts in FP8",
          "factors and results begin at multiples of 16 bytes");
  if (*product.a == formats::id_of<formats::Fp8TensorE5m2>) return run<E5M2>(stream, product, at);
  run<E4M3>(stream, product, at);
}

}  // namespace tessera::gemm
