#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/gemm/native.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera::gemm {
namespace {

/// Scales of FP8 blocks as MXFP8 has them: the exponents of powers of two, a block's in four columns. Padding is 0.
void write_exponents(Stream& stream, const Tensor& out, const Operand& factor, std::int64_t sides, std::int64_t sum) {
  constexpr std::int64_t repeats = formats::Fp8BlockOneD::block.columns / formats::Mxfp8::block.columns;
  constexpr std::int64_t edge = formats::Fp8Block::block.rows;
  const Tensor& scales = factor.codes->scales;
  const std::int64_t line = scales.columns(), across = out.columns(), blocks = sum / formats::Mxfp8::block.columns;
  const bool square = factor.codes->format == formats::id_of<formats::Fp8Block>;
  const auto* const in = scales.as<float>();
  auto* const bytes = out.as<std::uint8_t>();
  launch(
      stream, "exponents_of_scales", out.elements(), KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t row = i / across, column = i % across, block = column / repeats;
        std::uint32_t exponent = 0;
        if (row < sides && column < blocks) {
          const float scale = square ? in[row / edge * line + block] : in[block * line + row];
          exponent = std::bit_cast<std::uint32_t>(scale) >> 23;
        }
        bytes[formats::swizzled(row, column, across)] = static_cast<std::uint8_t>(exponent);
      });
}

/// One-byte scales as they are stored, in the order of block scaling.
void swizzle(Stream& stream, const Tensor& out, const Operand& factor) {
  const Codes& codes = *factor.codes;
  QuantizedMatrix matrix;
  matrix.matrix = {factor.rows(), factor.columns()};
  matrix.values = {nullptr, DType::bf16, {0}};
  (codes.side == Side::rowwise ? matrix.rowwise : matrix.columnwise) = {factor.data, codes.scales, codes.amax, out};
  swizzle_one(stream, codes.format, matrix);
}

/// The factor with its scales as block scaling reads them, [sides, sum / 32] or so, in the workspace `purpose`.
Operand tiled(Stream& stream, const Operand& factor, FormatId read_as, std::int64_t sides, std::int64_t sum,
              const char* purpose) {
  require(factor.members == 1 && !factor.decoded(), "block scaling", "a factor is one matrix of codes");
  const formats::Matrix shape = visit_format(read_as, [&]<class F>() {
    return formats::padded_extent<F>(Side::rowwise, {sides, sum});
  });
  const Tensor scales{stream.workspace(purpose, shape.elements()), DType::u8, {shape.rows, shape.columns}};
  Operand made = factor;
  made.codes->scales = scales;
  if (factor.codes->format == read_as) {
    swizzle(stream, scales, factor);
    return made;
  }
  write_exponents(stream, scales, factor, sides, sum);
  made.codes->format = read_as;
  made.codes->side = Side::rowwise;  // of the matrix [sides, sum], as its codes lie
  return made;
}

}  // namespace

Tiled::Tiled(Stream& stream, const Product& product, const Addresses& at) : Converted(product, at) {
  const Kind kind = kind_of(product), read = multiplied_as(kind).value();
  if (!visit_format(read.a, []<class F>() { return formats::swizzles<F>(); })) return;
  places_.a = tiled(stream, at.a, read.a, product.m, product.k, "tiled scales");
  b_ = tiled(stream, at.b.list[0], read.b, product.n, product.k, "other tiled scales");
  places_.b = {&b_, 1};
  product_.form = read.form;
  product_.a = read.a;
  product_.b = read.b;
  if (read != kind) product_.lda = product_.ldb = product.k;
}

}  // namespace tessera::gemm
