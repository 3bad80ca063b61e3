// Products of experts in bf16 on Hopper's tensor cores.
#include "kernels/gemm/grouped.cuh"

namespace tessera::gemm {
namespace {

using grouped::ColumnMajor;
using grouped::RowMajor;
using Value = cutlass::bfloat16_t;

/// Weight gradients take all experts' rows as they lie, with the summed dimension outside.
template <Form form>
using RowsOfA = std::conditional_t<form == Form::weight_gradient, ColumnMajor, RowMajor>;
template <Form form>
using RowsOfB = std::conditional_t<form == Form::forward, ColumnMajor, RowMajor>;
template <Form form>
using Multiplier =
    grouped::Multiplier<form == Form::weight_gradient, grouped::Factor<Value, RowsOfA<form>>,
                        grouped::Factor<Value, RowsOfB<form>>, cute::Shape<cute::_128, cute::_256, cute::_64>,
                        cute::Shape<cute::_2, cute::_1, cute::_1>,
                        cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>;

bool fits(const Product& p) {
  const bool sums = p.form == Form::weight_gradient;
  return p.type == DType::bf16 && p.sum == (sums ? DType::f32 : DType::bf16) && p.epilogue == Epilogue::none &&
         (p.beta == 0 || p.beta == 1) && p.n % 8 == 0 && (sums ? p.m : p.k) % 8 == 0;
}

}  // namespace

bool multiply_grouped(Stream& stream, const Product& product, const Addresses& at) {
  if (!fits(product) || (!stream.dry() && !grouped::lie_whole(at))) return false;
  switch (product.form) {
    case Form::forward:
      grouped::run<Multiplier<Form::forward>>(stream, product, at);
      break;
    case Form::input_gradient:
      grouped::run<Multiplier<Form::input_gradient>>(stream, product, at);
      break;
    case Form::weight_gradient:
      grouped::run<Multiplier<Form::weight_gradient>>(stream, product, at);
      break;
  }
  return true;
}

}  // namespace tessera::gemm
