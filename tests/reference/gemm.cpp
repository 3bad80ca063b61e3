#include "tests/reference/gemm.hpp"

namespace tessera::reference {
namespace {

std::size_t index(std::int64_t row, std::int64_t columns, std::int64_t column) {
  return static_cast<std::size_t>(row * columns + column);
}
std::vector<double> zeros(std::int64_t rows, std::int64_t columns) {
  return std::vector<double>(static_cast<std::size_t>(rows * columns), 0.0);
}

}  // namespace

std::vector<double> linear_forward(Linear size, std::span<const double> x, std::span<const double> w,
                                   std::span<const double> bias) {
  std::vector<double> y = zeros(size.rows, size.out);
  for (std::int64_t r = 0; r < size.rows; ++r)
    for (std::int64_t o = 0; o < size.out; ++o) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<std::size_t>(o)];
      for (std::int64_t i = 0; i < size.in; ++i) sum += x[index(r, size.in, i)] * w[index(o, size.in, i)];
      y[index(r, size.out, o)] = sum;
    }
  return y;
}

std::vector<double> linear_input_gradient(Linear size, std::span<const double> dy, std::span<const double> w) {
  std::vector<double> dx = zeros(size.rows, size.in);
  for (std::int64_t r = 0; r < size.rows; ++r)
    for (std::int64_t o = 0; o < size.out; ++o)
      for (std::int64_t i = 0; i < size.in; ++i)
        dx[index(r, size.in, i)] += dy[index(r, size.out, o)] * w[index(o, size.in, i)];
  return dx;
}

std::vector<double> linear_weight_gradient(Linear size, std::span<const double> dy, std::span<const double> x) {
  std::vector<double> dw = zeros(size.out, size.in);
  for (std::int64_t r = 0; r < size.rows; ++r)
    for (std::int64_t o = 0; o < size.out; ++o)
      for (std::int64_t i = 0; i < size.in; ++i)
        dw[index(o, size.in, i)] += dy[index(r, size.out, o)] * x[index(r, size.in, i)];
  return dw;
}

std::vector<double> bias_gradient(Linear size, std::span<const double> dy) {
  std::vector<double> db = zeros(1, size.out);
  for (std::int64_t r = 0; r < size.rows; ++r)
    for (std::int64_t o = 0; o < size.out; ++o) db[static_cast<std::size_t>(o)] += dy[index(r, size.out, o)];
  return db;
}

}  // namespace tessera::reference
