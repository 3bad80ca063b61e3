#pragma once
#include "kernels/quantize/measure.hpp"
#include "tests/reference/quantize.hpp"
#include "tests/reference/reduce.hpp"

/// Statistics of a quantizer, element by element, from the codes of reference::quantize().
namespace tessera::reference {

struct Statistics {
  std::uint64_t elements = 0, zeros = 0, nan = 0, infinite = 0, saturated = 0, underflow = 0;
  float amax = 0;
  std::vector<std::uint64_t> exponents = std::vector<std::uint64_t>(256);
  Natural values, errors;  ///< sums of squares in units of 2^-300

  void add(const Statistics& other);
};

/// x^2 in units of 2^-300.
void add_square(Natural& sum, float x);
/// An exact sum as a natural number.
Natural natural(const std::uint64_t (&limbs)[ExactSum::limbs]);

/// Of x [rows, columns], rounded and rotated already, of which rows with counted[row] count.
template <Format F>
Statistics measure(Side side, Matrix m, const std::vector<float>& x, const std::vector<bool>& counted,
                   const DrawByte& draw = {}) {
  const auto copy = quantize<F>(side, m, x, draw);
  const auto decoded = dequantize<F>(side, m, copy, F::step);
  const formats::Block b = formats::block_of<F>(side);
  using Element = typename F::Element;
  const float top = Element::max, below = Element::decode(Element::encode(top) - 1);
  const Matrix grid = formats::blocks<F>(side, m);
  std::vector<float> multipliers;
  for (std::int64_t i = 0; i < grid.rows; ++i)
    for (std::int64_t j = 0; j < grid.columns; ++j) {
      const BlockAt at = block_at<F>(side, m, i, j);
      multipliers.push_back(
          encoding_of<F>(m, x, at, F::tensor_scale(copy.amax_at(side, at.row, at.column))).multiplier);
    }
  Statistics s;
  for (std::int64_t r = 0; r < m.rows; ++r)
    for (std::int64_t c = 0; c < m.columns; ++c) {
      const auto i = static_cast<std::size_t>(r * m.columns + c);
      if (!counted[static_cast<std::size_t>(r)]) continue;
      ++s.elements;
      if (std::isnan(x[i])) ++s.nan;
      if (std::isinf(x[i])) ++s.infinite;
      if (x[i] == 0) ++s.zeros;
      if (!std::isfinite(x[i]) || x[i] == 0) continue;
      s.amax = std::max(s.amax, std::fabs(x[i]));
      ++s.exponents[std::bit_cast<std::uint32_t>(x[i]) >> 23 & 255u];
      const float v = x[i] * multipliers[static_cast<std::size_t>(r / b.rows * grid.columns + c / b.columns)];
      if (std::fabs(v) >= top + (top - below) / 2) ++s.saturated;
      const std::uint32_t code = get_code<F>(copy.data, element_place<F>(side, m, r, c));
      if (code % Element::sign == 0) ++s.underflow;
      add_square(s.values, x[i]);
      const float error = std::fabs(x[i] - decoded[i]), most = std::numeric_limits<float>::max();
      add_square(s.errors, error <= most ? error : most);  // decoded values may be infinite or NaN
    }
  return s;
}

}  // namespace tessera::reference
