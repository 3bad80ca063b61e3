#pragma once
#include <concepts>
#include <cstdint>
#include <string_view>

#include "kernels/base/dtype.hpp"
#include "kernels/base/index.hpp"
#include "kernels/formats/side.hpp"

/// The concept of a number format. README.md of this folder states all rules. Matrices are [rows, columns], row-major.
namespace tessera::formats {

struct Block {
  int rows = 1, columns = 1;
  constexpr bool operator==(const Block&) const = default;
};

/// Memory order of an array: that of the matrix from which it is made, or transposed.
enum class Order : std::uint8_t { as_source, transposed };

/// How the columnwise copy is made. requantized: quantized from the source on its own; transposed: from the rowwise
/// bytes; shared: it is the rowwise bytes.
enum class Columnwise : std::uint8_t { requantized, transposed, shared };

/// What ranks that hold parts of a matrix must agree on (a maximum over ranks) before they quantize them.
enum class Agreement : std::uint8_t { nothing, block_amax, block_and_tensor_amax, tensor_amax };
constexpr bool agrees_on_blocks(Agreement a) {
  return a == Agreement::block_amax || a == Agreement::block_and_tensor_amax;
}

/// Layout of a copy's scale array: each block's scale is repeated `repeat` times along rows and columns of the block
/// grid. The array is then transposed or not, and padded with zeros to multiples of `pad`.
struct ScaleLayout {
  Order order = Order::as_source;
  Block repeat, pad;
};

/// A whole matrix's scale, from which its blocks' scales are computed; ignored by formats without a tensor scale.
struct TensorScale {
  float encode = 1, inverse = 1;
};

/// A block's scale as stored, and the multiplier of its values before they are encoded.
template <class Scale>
struct Encoding {
  Scale scale;
  float multiplier;
};

template <class F>
concept Format = requires(float amax, float tensor_amax, TensorScale tensor, typename F::Scale scale,
                          std::uint32_t code) {
  { F::name } -> std::convertible_to<std::string_view>;
  { F::Element::bits } -> std::convertible_to<int>;             // 4, 8 or 16
  { F::Element::encode(amax) } -> std::same_as<std::uint32_t>;  // the code, in the low bits
  { F::Element::decode(code) } -> std::same_as<float>;
  typename F::Element::Storage;                // integer that stores one or two codes
  { F::block } -> std::convertible_to<Block>;  // of the rowwise copy
  { F::scaled } -> std::convertible_to<bool>;  // whether blocks have scales
  { F::ragged } -> std::convertible_to<bool>;  // the last block of a row may be shorter
  { F::columnwise } -> std::convertible_to<Columnwise>;
  { F::columnwise_order } -> std::convertible_to<Order>;
  { F::agreement } -> std::convertible_to<Agreement>;
  { F::tensor_amax } -> std::convertible_to<bool>;  // scales depend on the amax of the matrix, or of a line
  { F::leaves_alpha } -> std::convertible_to<bool>;  // factors of products lack the tensor's scale
  { F::hadamard } -> std::convertible_to<bool>;     // takes rotation of columnwise copies, random rounding (may_draw)
  { F::scale_layout(Side::rowwise) } -> std::same_as<ScaleLayout>;
  { F::tensor_scale(tensor_amax) } -> std::same_as<TensorScale>;
  { F::encoding(amax, tensor) } -> std::same_as<Encoding<typename F::Scale>>;
  { F::step(scale, tensor_amax) } -> std::same_as<float>;  // factor of a decoded element
  { F::factor_step(scale, tensor_amax) } -> std::same_as<float>;  // the same where it is a product's factor
  { F::tensor_step(tensor_amax) } -> std::same_as<float>;         // the tensor's part of step; 1 without
};

/// Whether elements are plain values, without scales of blocks or of the tensor.
template <class F>
inline constexpr bool is_plain = !F::scaled && !F::tensor_amax;

/// Whether each line of a copy has an amax and a scale of its own, in place of the tensor's. Lines are rows of the
/// rowwise copy, columns of the columnwise one.
template <class F>
inline constexpr bool by_lines = requires { requires F::line_amax; };

/// Whether a block chooses between two encodings, encoding() and other_encoding(), by their quantization errors.
/// error(v, q) is that of a scaled value v whose code decodes to q: an integer, so that sums of a block have no order.
/// takes_other() chooses, by both scales and both sums over the block.
template <class F>
inline constexpr bool chooses = requires(float amax, TensorScale tensor) { F::other_encoding(amax, tensor); };

/// Whether elements may be rounded at random: not where errors choose the encoding, which would follow the draws.
template <class F>
inline constexpr bool may_draw = F::hadamard && !chooses<F>;

}  // namespace tessera::formats
