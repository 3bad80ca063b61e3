#include "kernels/gemm/decoded.hpp"

#include "kernels/base/launch.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera::gemm {
namespace {

/// `factor` as values at `memory`, its members one behind the other.
Operand values_of(Stream& stream, const Operand& factor, std::byte* memory) {
  const std::int64_t rows = factor.rows(), columns = factor.columns(), size = rows * columns;
  const Codes& codes = *factor.codes;
  const std::int64_t stride = factor.members > 1 ? factor.member_stride : size;
  require(stride == size, "product of codes", "members of a factor of codes touch");
  QuantizedMatrix matrix;
  matrix.matrix = {rows, columns};
  matrix.members = factor.members;
  matrix.values = {memory, DType::bf16, {factor.members * rows, columns}};
  const Shape all{factor.members * factor.data.rows(), factor.data.columns()};
  Copy& copy = codes.side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
  copy.data = {factor.data.data, factor.data.type, all};
  copy.scales = codes.scales;
  copy.scales.shape = {factor.members * codes.scales.rows(), codes.scales.columns()};
  copy.amax = codes.amax;
  decode_one(stream, codes.format, matrix, codes.side);
  return {{memory, DType::bf16, {rows, columns}}, factor.members, size};
}

/// out[e] = (a r) (b[e] r), r = 1/2688 rounded: what products of NVFP4 are multiplied by; zero and one behind them.
void write_alphas(Stream& stream, const Tensor& out, const Tensor& a, const ExpertOperands& b) {
  const std::int64_t members = out.elements() - 2;
  float* const alpha = out.as<float>();
  const float* const of_a = a.as<float>();
  for (int i = 0; i < b.count; ++i) {
    const float* const of_b = b.list[i].codes->amax.as<float>();
    const std::int64_t first = i, count = b.count == 1 ? members : 1;
    launch(
        stream, "product_alphas", count + 2, KOKKOS_LAMBDA(std::int64_t e) {
          constexpr float r = 1.0f / 2688.0f;
          if (e < count)
            alpha[first + e] = (of_a[0] * r) * (of_b[e] * r);
          else
            alpha[members + e - count] = e == count ? 0.0f : 1.0f;
        });
  }
}

}  // namespace

Decoded::Decoded(Stream& stream, const Product& product, const Places& at) : product_(product), places_(at) {
  product_.a = product_.b = std::nullopt;
  const std::int64_t elements = product.form == Form::weight_gradient ? product.k * product.m : product.m * product.k;
  if (product.a) places_.a = values_of(stream, at.a, stream.workspace("decoded factor", 2 * elements));
  if (!product.b) return;
  std::int64_t members = 0;
  for (int i = 0; i < at.b.count; ++i) members += at.b.list[i].members;
  const Operand& first = at.b.list[0];
  const std::int64_t size = first.rows() * first.columns();
  std::byte* const memory = stream.workspace("other decoded factor", 2 * members * size);
  for (int i = 0; i < at.b.count; ++i) {
    const Operand one = values_of(stream, at.b.list[i], memory + 2 * i * size);
    if (i == 0) b_ = one;
  }
  b_.members = members;
  b_.member_stride = size;
  places_.b = {&b_, 1};
  if (!product.scaled) return;
  const std::int64_t alphas = product.form == Form::weight_gradient ? 1 : members;
  const std::int64_t bytes = (alphas + 2) * size_of(DType::f32);
  places_.alpha = {stream.workspace("alphas of products", bytes), DType::f32, {alphas + 2}};
  write_alphas(stream, places_.alpha, at.a.codes->amax, at.b);
}

}  // namespace tessera::gemm
