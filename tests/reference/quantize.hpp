#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "kernels/formats/registry.hpp"
#include "kernels/random/random.hpp"

/// Quantization of one matrix, element by element, as kernels/formats/README.md states it.
namespace tessera::reference {

using formats::Format;
using formats::Matrix;

/// One copy of a matrix: bytes as stored, and scales with their padding.
template <class Scale>
struct QuantizedCopy {
  std::vector<std::uint8_t> data;
  std::vector<Scale> scales;
  std::vector<float> amaxes;  ///< of the matrix, or of each line: of each row of the rowwise copy, or column

  /// That of element (r, c), and of the whole matrix.
  float amax_at(Side side, std::int64_t r, std::int64_t c) const {
    if (amaxes.size() == 1) return amaxes.front();
    return amaxes[static_cast<std::size_t>(side == Side::rowwise ? r : c)];
  }
};

/// The random byte of element (row, column) for stochastic rounding; empty: round to nearest.
using DrawByte = std::function<std::uint32_t(std::int64_t row, std::int64_t column)>;

/// Byte i mod 16 of Philox block i / 16 under `key`, i = rows[row] * columns + column.
DrawByte draw_bytes(RandomKey key, std::vector<std::int64_t> rows, std::int64_t columns);

/// Every value rounded to bf16.
std::vector<float> rounded_to_bf16(const std::vector<float>& values);

/// The Hadamard rotation, sixteen rows at a time along the columns: H16 (s * x) / 4 with fp32 butterflies.
std::vector<float> hadamard(Matrix m, const std::vector<float>& x);

/// Largest magnitude of a part of a matrix, NaN ignored.
float largest(Matrix m, const std::vector<float>& x, std::int64_t row, std::int64_t rows, std::int64_t column,
              std::int64_t columns);

/// The amaxes of a copy of x.
template <Format F>
std::vector<float> amaxes_of(Side side, Matrix m, const std::vector<float>& x) {
  if (!formats::by_lines<F>) return {largest(m, x, 0, m.rows, 0, m.columns)};
  std::vector<float> amaxes;
  for (std::int64_t i = 0; i < (side == Side::rowwise ? m.rows : m.columns); ++i)
    amaxes.push_back(side == Side::rowwise ? largest(m, x, i, 1, 0, m.columns) : largest(m, x, 0, m.rows, i, 1));
  return amaxes;
}

/// Writes code number `i` of a copy.
template <Format F>
void put_code(std::vector<std::uint8_t>& data, std::int64_t i, std::uint32_t code) {
  const auto at = static_cast<std::size_t>(formats::data_bytes<F>(i));
  if (F::Element::bits == 4)
    data[at] = static_cast<std::uint8_t>(i % 2 == 0 ? (data[at] & 0xF0) | code : (data[at] & 0x0F) | code << 4);
  else
    data[at] = static_cast<std::uint8_t>(code);
  if (F::Element::bits == 16) data[at + 1] = static_cast<std::uint8_t>(code >> 8);
}
template <Format F>
std::uint32_t get_code(std::span<const std::uint8_t> data, std::int64_t i) {
  const auto at = static_cast<std::size_t>(formats::data_bytes<F>(i));
  if (F::Element::bits == 4) return i % 2 == 0 ? data[at] & 15u : data[at] >> 4;
  return F::Element::bits == 8 ? data[at] : data[at] | static_cast<std::uint32_t>(data[at + 1]) << 8;
}

/// Index of element (r, c) among the elements of a copy.
template <Format F>
std::int64_t element_place(Side side, Matrix m, std::int64_t r, std::int64_t c) {
  return formats::order_of<F>(side) == formats::Order::transposed ? c * m.rows + r : r * m.columns + c;
}
/// Indices of the scale of block (i, j) in a copy, which may store it repeatedly.
template <Format F>
std::vector<std::int64_t> scale_places(Side side, Matrix m, std::int64_t i, std::int64_t j) {
  const formats::ScaleLayout layout = F::scale_layout(side);
  const Matrix padded = formats::padded_extent<F>(side, m);
  std::vector<std::int64_t> places;
  for (int a = 0; a < layout.repeat.rows; ++a)
    for (int b = 0; b < layout.repeat.columns; ++b) {
      const std::int64_t row = i * layout.repeat.rows + a, column = j * layout.repeat.columns + b;
      places.push_back(layout.order == formats::Order::as_source ? row * padded.columns + column
                                                                 : column * padded.columns + row);
    }
  return places;
}

/// A block of a matrix.
struct BlockAt {
  std::int64_t row, row_end, column, column_end;
};
template <Format F>
BlockAt block_at(Side side, Matrix m, std::int64_t i, std::int64_t j) {
  const formats::Block b = formats::block_of<F>(side);
  return {i * b.rows, std::min((i + 1) * b.rows, m.rows), j * b.columns, std::min((j + 1) * b.columns, m.columns)};
}

/// What a block loses under one of two encodings: the errors of its codes' values times its scale. An error is a whole
/// number of units of 2^-20, and at most 64.
template <Format F>
double loss(Matrix m, const std::vector<float>& x, const BlockAt& b, const formats::Encoding<typename F::Scale>& by) {
  double sum = 0;
  for (std::int64_t r = b.row; r < b.row_end; ++r)
    for (std::int64_t c = b.column; c < b.column_end; ++c) {
      const float v = x[static_cast<std::size_t>(r * m.columns + c)] * by.multiplier;
      const float error = v - F::Element::decode(F::Element::encode(v));
      if (!std::isnan(v)) sum += std::rint(std::ldexp(std::min(std::fabs(error), 64.0f), 20));
    }
  return sum * static_cast<double>(formats::E4M3::decode(by.scale));
}

/// The encoding of a block of x.
template <Format F>
formats::Encoding<typename F::Scale> encoding_of(Matrix m, const std::vector<float>& x, const BlockAt& b,
                                                 const formats::TensorScale& tensor) {
  const float amax = largest(m, x, b.row, b.row_end - b.row, b.column, b.column_end - b.column);
  const auto one = F::encoding(amax, tensor);
  if constexpr (formats::chooses<F>) {
    const auto other = F::other_encoding(amax, tensor);
    const bool vanishes = one.scale == 0 && other.scale != 0;
    if (vanishes || loss<F>(m, x, b, other) < loss<F>(m, x, b, one)) return other;
  }
  return one;
}

/// Quantizes one copy of x [rows, columns]; x is rounded and rotated already.
template <Format F>
QuantizedCopy<typename F::Scale> quantize(Side side, Matrix m, const std::vector<float>& x, const DrawByte& draw = {}) {
  QuantizedCopy<typename F::Scale> copy;
  copy.data.assign(static_cast<std::size_t>(formats::data_bytes<F>(m.elements())), 0);
  copy.scales.assign(static_cast<std::size_t>(formats::padded_extent<F>(side, m).elements()), 0);
  copy.amaxes = amaxes_of<F>(side, m, x);
  const Matrix grid = formats::blocks<F>(side, m);
  for (std::int64_t i = 0; i < grid.rows; ++i)
    for (std::int64_t j = 0; j < grid.columns; ++j) {
      const BlockAt b = block_at<F>(side, m, i, j);
      const auto encoding = encoding_of<F>(m, x, b, F::tensor_scale(copy.amax_at(side, b.row, b.column)));
      if (F::scaled)
        for (std::int64_t place : scale_places<F>(side, m, i, j))
          copy.scales[static_cast<std::size_t>(place)] = encoding.scale;
      for (std::int64_t r = b.row; r < b.row_end; ++r)
        for (std::int64_t c = b.column; c < b.column_end; ++c) {
          const float v = x[static_cast<std::size_t>(r * m.columns + c)];
          const float scaled = formats::is_plain<F> ? v : v * encoding.multiplier;
          const std::uint32_t code = draw ? formats::e2m1_stochastic(scaled, draw(r, c)) : F::Element::encode(scaled);
          put_code<F>(copy.data, element_place<F>(side, m, r, c), code);
        }
    }
  return copy;
}

/// The largest magnitude of every block of the rowwise copy, row-major; NaN ignored.
template <Format F>
std::vector<float> block_amaxes(Matrix m, const std::vector<float>& x) {
  const Matrix grid = formats::blocks<F>(Side::rowwise, m);
  std::vector<float> amaxes;
  for (std::int64_t row = 0; row < grid.rows * F::block.rows; row += F::block.rows)
    for (std::int64_t column = 0; column < grid.columns * F::block.columns; column += F::block.columns)
      amaxes.push_back(largest(m, x, row, std::min<std::int64_t>(F::block.rows, m.rows - row), column,
                               std::min<std::int64_t>(F::block.columns, m.columns - column)));
  return amaxes;
}

/// The scales of one copy in the order of block-scaled GEMMs. MXFP8's columnwise array is taken transposed; all others
/// are the scale matrix itself.
template <Format F>
std::vector<std::uint8_t> swizzled_scales(Side side, Matrix m, const std::vector<std::uint8_t>& scales) {
  const Matrix padded = formats::padded_extent<F>(side, m);
  const bool turned = side == Side::columnwise && F::columnwise_order == formats::Order::as_source;
  std::vector<std::uint8_t> swizzled(scales.size());
  for (std::int64_t a = 0; a < padded.rows; ++a)
    for (std::int64_t b = 0; b < padded.columns; ++b) {
      const std::int64_t place =
          turned ? formats::swizzled(b, a, padded.rows) : formats::swizzled(a, b, padded.columns);
      swizzled[static_cast<std::size_t>(place)] = scales[static_cast<std::size_t>(a * padded.columns + b)];
    }
  return swizzled;
}

/// The columnwise copy made from the rowwise one, for formats that derive it.
template <Format F>
QuantizedCopy<typename F::Scale> columnwise_of(Matrix m, const QuantizedCopy<typename F::Scale>& rowwise) {
  static_assert(F::columnwise != formats::Columnwise::requantized);
  QuantizedCopy<typename F::Scale> copy;
  copy.data.assign(rowwise.data.size(), 0);
  copy.scales.assign(static_cast<std::size_t>(formats::padded_extent<F>(Side::columnwise, m).elements()), 0);
  copy.amaxes = rowwise.amaxes;
  for (std::int64_t r = 0; r < m.rows; ++r)
    for (std::int64_t c = 0; c < m.columns; ++c)
      put_code<F>(copy.data, element_place<F>(Side::columnwise, m, r, c),
                  get_code<F>(rowwise.data, element_place<F>(Side::rowwise, m, r, c)));
  const Matrix grid = formats::blocks<F>(Side::rowwise, m);
  for (std::int64_t i = 0; F::scaled && i < grid.rows; ++i)
    for (std::int64_t j = 0; j < grid.columns; ++j)
      for (const std::int64_t place : scale_places<F>(Side::columnwise, m, i, j))
        copy.scales[static_cast<std::size_t>(place)] =
            rowwise.scales[static_cast<std::size_t>(scale_places<F>(Side::rowwise, m, i, j).front())];
  return copy;
}

/// Values of one copy in the matrix's own order; step(scale, amax) is F::step or F::factor_step.
template <Format F, class Step>
std::vector<float> dequantize(Side side, Matrix m, const QuantizedCopy<typename F::Scale>& copy, const Step& step) {
  std::vector<float> x(static_cast<std::size_t>(m.elements()));
  const formats::Block b = formats::block_of<F>(side);
  for (std::int64_t r = 0; r < m.rows; ++r)
    for (std::int64_t c = 0; c < m.columns; ++c) {
      float v = F::Element::decode(get_code<F>(copy.data, element_place<F>(side, m, r, c)));
      if (F::scaled)
        v *= step(copy.scales[static_cast<std::size_t>(scale_places<F>(side, m, r / b.rows, c / b.columns).front())],
                  copy.amax_at(side, r, c));
      else if (F::tensor_amax)
        v *= step(typename F::Scale{}, copy.amax_at(side, r, c));
      x[static_cast<std::size_t>(r * m.columns + c)] = v;
    }
  return x;
}

}  // namespace tessera::reference
