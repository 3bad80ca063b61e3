#include "tests/reference/newton_schulz.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::reference {
namespace {

float rounded(float x) { return bf16(x); }

/// A matrix, row-major.
struct Matrix {
  std::size_t rows, columns;
  std::vector<float> values;

  float operator()(std::size_t i, std::size_t j) const { return values[i * columns + j]; }
  float& operator()(std::size_t i, std::size_t j) { return values[i * columns + j]; }
};

Matrix transposed(const Matrix& m) {
  Matrix t{m.columns, m.rows, std::vector<float>(m.values.size())};
  for (std::size_t i = 0; i < m.rows; ++i)
    for (std::size_t j = 0; j < m.columns; ++j) t(j, i) = m(i, j);
  return t;
}

/// a b^T, computed in double and rounded to fp32.
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.rows, std::vector<float>(a.rows * b.rows)};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < b.rows; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < a.columns; ++k) sum += static_cast<double>(a(i, k)) * b(j, k);
      c(i, j) = static_cast<float>(sum);
    }
  return c;
}

/// bf16(p x + q y), elementwise.
Matrix combined(float p, const Matrix& x, float q, const Matrix& y) {
  Matrix out = x;
  for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] = rounded(p * x.values[i] + q * y.values[i]);
  return out;
}

}  // namespace

std::vector<float> newton_schulz(std::span<const float> matrix, std::int64_t rows, std::int64_t columns,
                                 std::span<const NewtonSchulzStep> steps) {
  const Matrix u{static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), {matrix.begin(), matrix.end()}};
  Matrix x = rows > columns ? transposed(u) : u;
  double squares = 0;
  for (float v : matrix) squares += static_cast<double>(v) * v;
  const float norm = std::max(static_cast<float>(std::sqrt(squares)), 1e-15f);
  for (float& v : x.values) v = rounded(v / norm);
  for (const NewtonSchulzStep& step : steps) {
    Matrix a = product(x, x);
    for (float& v : a.values) v = rounded(v);
    const Matrix b = combined(step.b, a, step.c, product(a, a));
    x = combined(step.a, x, 1, product(b, transposed(x)));
  }
  return (rows > columns ? transposed(x) : x).values;
}

}  // namespace tessera::reference
