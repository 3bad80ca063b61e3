#include "kernels/gemm/decoded.hpp"

#include <algorithm>
#include <array>

#include "kernels/base/launch.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera::gemm {
namespace {

Copy copy_of(const Operand& factor) {
  const Codes& codes = *factor.codes;
  Copy copy;
  copy.data = {factor.data.data, factor.data.type, {factor.members * factor.data.rows(), factor.data.columns()}};
  copy.scales = codes.scales;
  if (copy.scales) copy.scales.shape = {factor.members * codes.scales.rows(), codes.scales.columns()};
  copy.amax = codes.amax;
  return copy;
}

QuantizedMatrix values_at(std::byte* memory, const Operand& factor, std::int64_t members) {
  QuantizedMatrix matrix;
  matrix.matrix = {factor.rows(), factor.columns()};
  matrix.members = members;
  matrix.values = {memory, DType::bf16, {members * factor.rows(), factor.columns()}};
  return matrix;
}

/// The values of `factor`: its own, or decoded to the workspace `purpose`; members follow one another.
Operand values_of(Stream& stream, const Operand& factor, const char* purpose) {
  const std::int64_t size = factor.rows() * factor.columns();
  if (factor.decoded()) return {factor.data, factor.members, factor.member_stride};
  std::byte* const memory = stream.workspace(purpose, 2 * factor.members * size);
  require(factor.members == 1 || factor.member_stride == size, "product of codes",
          "members of a factor of codes touch");
  QuantizedMatrix matrix = values_at(memory, factor, factor.members);
  const Codes& codes = *factor.codes;
  (codes.side == Side::rowwise ? matrix.rowwise : matrix.columnwise) = copy_of(factor);
  decode_one(stream, codes.format, matrix, codes.side);
  return {{memory, DType::bf16, {factor.rows(), factor.columns()}}, factor.members, size};
}

/// The values of all experts' factors, decoded by few launches whatever the number of experts.
Operand values_of(Stream& stream, const ExpertOperands& b, const char* purpose) {
  const Operand& first = b.list[0];
  if (b.count == 1) return values_of(stream, first, purpose);
  const std::int64_t size = first.rows() * first.columns();
  std::byte* const memory = stream.workspace(purpose, 2 * b.count * size);
  for (int begin = 0; begin < b.count; begin += decoded_at_once) {
    const int n = std::min(decoded_at_once, b.count - begin);
    std::array<Copy, decoded_at_once> copies;
    std::transform(b.list + begin, b.list + begin + n, copies.begin(), copy_of);
    decode_apart(stream, first.codes->format, values_at(memory + 2 * begin * size, first, n),
                 {copies.data(), static_cast<std::size_t>(n)}, first.codes->side);
  }
  return {{memory, DType::bf16, {first.rows(), first.columns()}}, b.count, size};
}

constexpr int alphas_at_once = 128;

/// Addresses of the tensor scales (amax) of the factors that one launch handles.
struct Amaxes {
  const float* of[alphas_at_once];
};

/// Whose tensor scale, left out of a factor's values or codes, is in an alpha: null for a factor that lacks none.
const float* scaled_by(const Operand& factor, bool native) {
  if (!factor.codes) return nullptr;
  const FormatTraits format = traits_of(factor.codes->format);
  return (native ? format.tensor_amax : format.leaves_alpha) ? factor.codes->amax.as<float>() : nullptr;
}
FormatId format_of(const Operand& factor) { return factor.codes ? factor.codes->format : FormatId{}; }

/// out[e] = the tensor step of a times that of b[e], which follow from the factors' amaxes; 1 for a factor that lacks
/// no scale. Two constants follow the alphas: zero and one.
void write_alphas(Stream& stream, const Tensor& out, const Operand& a, const ExpertOperands& b, bool native) {
  const std::int64_t members = out.elements() - 2, each = b.count == 1 ? members : 1;
  float* const alpha = out.as<float>();
  const float* const of_a = scaled_by(a, native);
  const FormatId format_a = format_of(a), format_b = format_of(b.list[0]);
  for (int begin = 0; begin < b.count; begin += alphas_at_once) {
    const int n = std::min(alphas_at_once, b.count - begin);
    Amaxes amaxes{};
    for (int i = 0; i < n; ++i) amaxes.of[i] = scaled_by(b.list[begin + i], native);
    const std::int64_t first = begin, count = n * each;
    launch(
        stream, "product_alphas", count + 2, KOKKOS_LAMBDA(std::int64_t e) {
          constexpr formats::Registry all;
          if (e < count) {
            const float of_first = of_a ? formats::tensor_step(all, format_a, of_a[0]) : 1.0f;
            const bool scaled = amaxes.of[e / each];
            alpha[first + e] =
                // mutation: alpha_of_the_first_member
                of_first * (scaled ? formats::tensor_step(all, format_b, amaxes.of[e / each][e % each]) : 1.0f);
          } else {
            alpha[members + e - count] = e == count ? 0.0f : 1.0f;
          }
        });
  }
}

}  // namespace

Tensor alphas_of(Stream& stream, const Product& product, const Addresses& at, Route route) {
  const std::int64_t members = at.b.count == 1 ? at.b.list[0].members : at.b.count;
  const std::int64_t alphas = product.form == Form::weight_gradient ? 1 : members;
  const std::int64_t bytes = (alphas + 2) * size_of(DType::f32);
  const Tensor alpha{stream.workspace("alphas of products", bytes), DType::f32, {alphas + 2}};
  write_alphas(stream, alpha, at.a, at.b, route == Route::native);
  return alpha;
}

Decoded::Decoded(Stream& stream, const Product& product, const Addresses& at) : Converted(product, at) {
  product_.a = product_.b = std::nullopt;
  if (product.a) places_.a = values_of(stream, at.a, "decoded factor");
  if (product.b) {
    b_ = values_of(stream, at.b, "other decoded factor");
    places_.b = {&b_, 1};
  }
  if (product.scaled) places_.alpha = alphas_of(stream, product, at, Route::decoded);
}

}  // namespace tessera::gemm
