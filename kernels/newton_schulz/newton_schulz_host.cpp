// The host's back end: one matrix at a time, by the products of linear layers. Where a result is added to, their sums
// are kept in fp32.
#include "kernels/base/launch.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/newton_schulz/back.hpp"

namespace tessera::newton_schulz_back {
namespace {

using Matrix = NewtonSchulzTable::Row;

/// Copies the upper triangle of a [n,n] to the lower: the product X X^T is symmetric except for the order of sums.
void mirror(Stream& stream, bf16* a, std::int64_t n) {
  launch_rows(
      stream, "newton_schulz_mirror", n, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
        row.each(n - i, [=](std::int64_t j) { a[(i + j) * n + i] = a[i * n + i + j]; });
      });
}

/// out [n,n] = bf16(b a + c square), computed in the upper triangle and copied to the lower.
void combine(Stream& stream, bf16* out, const bf16* a, const float* square, std::int64_t n, float b, float c) {
  launch_rows(
      stream, "newton_schulz_combine", n, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
        row.each(n - i, [=](std::int64_t j) {
          const std::int64_t at = i * n + i + j;
          out[at] = out[(i + j) * n + i] = bf16(b * static_cast<float>(a[at]) + c * square[at]);
        });
      });
}

/// out = bf16(a x + product), row by row.
void update(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& product, float a) {
  const std::int64_t n = x.columns();
  bf16* const to = out.as<bf16>();
  const bf16* const from = x.as<bf16>();
  const float* const sum = product.as<float>();
  launch_rows(
      stream, "newton_schulz_update", x.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
        row.each(n, [=](std::int64_t j) {
          to[i * n + j] = bf16(a * static_cast<float>(from[i * n + j]) + sum[i * n + j]);
        });
      });
}

}  // namespace

std::int64_t row_length(std::int64_t columns) { return columns; }
std::int64_t batch_bytes() { return 0; }

void step(Stream& stream, const NewtonSchulzTable& table, const NewtonSchulzTable::Batch& batch,
          const NewtonSchulzStep& coefficients, bf16* scratch, int to) {
  const Matrix& matrix = table.rows()[static_cast<std::size_t>(batch.first)];
  const std::int64_t small = matrix.small, big = matrix.big;
  std::byte* const sums = stream.workspace("Newton-Schulz sums", small * big * std::int64_t{sizeof(float)});
  const auto in_scratch = [&](std::int64_t begin, Shape shape) { return Tensor{scratch + begin, DType::bf16, shape}; };
  const Tensor x = in_scratch(matrix.x[1 - to], {small, big}), next = in_scratch(matrix.x[to], {small, big});
  const Tensor a = in_scratch(matrix.a, {small, small}), b = in_scratch(matrix.b, {small, small});
  const Tensor square{sums, DType::f32, {small, small}}, product{sums, DType::f32, {small, big}};
  linear_forward(stream, a, x, x);
  mirror(stream, a.as<bf16>(), small);
  linear_weight_gradient(stream, {square}, a, a);
  combine(stream, b.as<bf16>(), a.as<bf16>(), square.as<float>(), small, coefficients.b, coefficients.c);
  linear_weight_gradient(stream, {product}, b, x);  // b is its own transpose
  update(stream, next, x, product, coefficients.a);
}

}  // namespace tessera::newton_schulz_back
