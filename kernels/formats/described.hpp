#pragma once
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/formats/e8m0.hpp"
#include "kernels/formats/fp8_block.hpp"
#include "kernels/formats/id.hpp"
#include "kernels/formats/layout.hpp"
#include "kernels/formats/nvfp4.hpp"

/// Formats described by numbers instead of types. Their rules are those of the formats of the registry, which give the
/// same bits where they are described so.
namespace tessera::formats {

/// What the topmost codes of a floating element are. none: numbers; nan: the code of all ones is NaN, as in E4M3; ieee:
/// the top exponent is infinity and NaN, as in E5M2.
enum class Special : std::uint8_t { none, nan, ieee };

/// A block's scale. e8m0: a power of two in a byte, rounded up (mxfp8); e8m0_floor: as OCP converts. power: a power of
/// two in fp32 (fp8_block). e4m3: an E4M3 number beside the amax of the whole matrix (nvfp4).
enum class ScaleKind : std::uint8_t { e8m0, e8m0_floor, power, e4m3 };

/// A format in numbers. Blocks are parts of a row; of the columnwise copy, quantized anew, they are parts of a column.
/// Or they are squares, or the whole matrix: then one copy serves both sides.
struct Description {
  int exponent_bits = 0;  ///< 0: an integer
  int mantissa_bits = 0;  ///< of an integer: bits of its magnitude
  Special special = Special::none;
  Block block = {};  ///< 0 x 0: the whole matrix
  ScaleKind scale = ScaleKind::e8m0;

  TESSERA_FN constexpr bool of_tensor() const { return block.rows == 0; }
  TESSERA_FN constexpr bool square() const { return block.rows == block.columns; }
  constexpr bool operator==(const Description&) const = default;
};

/// The id that holds a description, and back.
TESSERA_FN constexpr bool is_described(FormatId id) { return static_cast<std::uint32_t>(id) >> 31 != 0; }
constexpr FormatId id_of_description(const Description& d) {
  const auto field = [](auto value, int at) { return static_cast<std::uint32_t>(value) << at; };
  const auto edge = [](int n) { return n == 0 ? 0 : std::bit_width(static_cast<unsigned>(n)); };
  return static_cast<FormatId>(field(1, 31) | field(d.exponent_bits, 0) | field(d.mantissa_bits, 3) |
                               field(d.special, 6) | field(d.scale, 8) | field(edge(d.block.rows), 10) |
                               field(edge(d.block.columns), 14));
}
TESSERA_FN constexpr Description description_of(FormatId id) {
  const auto word = static_cast<std::uint32_t>(id);
  const auto edge = [](std::uint32_t bits) { return bits == 0 ? 0 : 1 << (bits - 1); };
  return {static_cast<int>(word & 7u),
          static_cast<int>(word >> 3 & 7u),
          static_cast<Special>(word >> 6 & 3u),
          {edge(word >> 10 & 15u), edge(word >> 14 & 15u)},
          static_cast<ScaleKind>(word >> 8 & 3u)};
}

/// Minifloat (minifloat.hpp) of any widths. An integer is a minifloat all of whose numbers are subnormal, with unit 1:
/// its code is sign and magnitude. A byte holds one code, in its low bits.
struct DescribedElement {
  using Storage = std::uint8_t;
  static constexpr int bits = 8;  ///< as stored
  int mantissa_bits, bias;
  std::uint32_t sign, max_code, nan_code;
  float max;

  TESSERA_FN explicit constexpr DescribedElement(const Description& d)
      : mantissa_bits(d.mantissa_bits),
        bias(d.exponent_bits == 0 ? 1 - d.mantissa_bits : (1 << (d.exponent_bits - 1)) - 1),
        sign(1u << (d.exponent_bits + d.mantissa_bits)),
        max_code(d.special == Special::none  ? sign - 1
                 : d.special == Special::nan ? sign - 2
                                             : sign - 1 - (1u << d.mantissa_bits)),
        nan_code(sign - 1),
        max(0) {
    max = decode(max_code);
  }

  /// Bits of the widest significand.
  constexpr int significand() const { return sign == 1u << mantissa_bits ? mantissa_bits : mantissa_bits + 1; }

  TESSERA_FN constexpr std::uint32_t encode(float x) const {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = u & 0x7FFFFFFFu;
    const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::int32_t above = static_cast<std::int32_t>(magnitude >> 23) - (128 - bias);
    const std::int32_t wanted = 23 - mantissa_bits - (above < 0 ? above : 0);
    const std::int32_t shift = wanted < 25 ? wanted : 25;
    const std::uint32_t binade = static_cast<std::uint32_t>(above < 0 ? 0 : above) << mantissa_bits;
    const std::uint32_t odd = ((significand >> shift) + binade) & 1u;  // of the code, if it is cut off
    const std::uint32_t code = ((significand + (0xFFFFFFu >> (25 - shift)) + odd) >> shift) + binade;
    const std::uint32_t finite = (code < max_code ? code : max_code) | ((u >> 31) != 0 ? sign : 0u);
    return magnitude > 0x7F800000u ? nan_code : finite;
  }
  /// The value of a code, exact. Codes above the largest finite one are infinity (mantissa 0) or NaN.
  TESSERA_FN constexpr float decode(std::uint32_t code) const {
    const std::uint32_t mantissa_mask = (1u << mantissa_bits) - 1, magnitude = code & (sign - 1);
    const std::uint32_t mantissa = magnitude & mantissa_mask;
    const auto unit = std::bit_cast<float>(static_cast<std::uint32_t>(128 - bias - mantissa_bits) << 23);
    const std::uint32_t normal =
        (magnitude << (23 - mantissa_bits)) + (static_cast<std::uint32_t>(127 - bias) << 23);
    const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(mantissa)) * unit);
    const std::uint32_t finite = magnitude > mantissa_mask ? normal : subnormal;
    const std::uint32_t beyond = mantissa == 0 ? 0x7F800000u : 0x7FC00000u;
    return std::bit_cast<float>((magnitude > max_code ? beyond : finite) | ((code & sign) != 0 ? 0x80000000u : 0u));
  }
};

/// A described format with the members of the concept Format (format.hpp), as an object: plain data for kernels.
struct Described {
  using Scale = std::uint32_t;  ///< bits of a scale: its code, or those of an fp32
  static constexpr bool hadamard = false, ragged = true;

  Description description;
  DescribedElement element;
  float largest;  ///< with scales e4m3: the multiple of the tensor's scale that is the largest decoded magnitude

  TESSERA_FN explicit constexpr Described(const Description& d)
      : description(d), element(d), largest(element.max * E4M3::max) {}
  TESSERA_FN explicit constexpr Described(FormatId id) : Described(description_of(id)) {}

  TESSERA_FN constexpr bool scaled() const { return !description.of_tensor(); }
  TESSERA_FN constexpr bool tensor_amax() const { return description.of_tensor() || two_levels(); }
  /// Whether products' factors lack the tensor's scale.
  TESSERA_FN constexpr bool two_levels() const { return description.scale == ScaleKind::e4m3; }
  TESSERA_FN constexpr Columnwise columnwise() const {
    return description.square() ? Columnwise::shared : Columnwise::requantized;
  }
  constexpr Agreement agreement() const {
    if (description.of_tensor()) return Agreement::tensor_amax;
    if (!description.square()) return Agreement::nothing;
    return two_levels() ? Agreement::block_and_tensor_amax : Agreement::block_amax;
  }
  /// Scales lie one a block, row-major, without padding.
  TESSERA_FN constexpr Geometry geometry() const {
    const Block unit{128, 128};  // of work, where there are no blocks
    return {DescribedElement::bits,
            scaled() ? description.block : unit,
            scaled(),
            ragged,
            columnwise(),
            Order::as_source,
            description.scale == ScaleKind::power ? 4 : 1,
            {Order::as_source, {1, 1}, {1, 1}},
            {Order::as_source, {1, 1}, {1, 1}}};
  }

  TESSERA_FN constexpr TensorScale tensor_scale(float amax) const {
    if (description.of_tensor()) {
      const float multiplier = power_multiplier(element.max, amax);
      return {multiplier, inverse_of_power(multiplier)};
    }
    if (!two_levels()) return {};
    const bool unit = amax == 0.0f || std::bit_cast<std::uint32_t>(amax) >= 0x7F800000u;
    const float encode = unit ? 1.0f : at_most_largest(largest / amax);
    return {encode, 1.0f / encode};
  }
  TESSERA_FN constexpr Encoding<Scale> encoding(float amax, TensorScale tensor) const {
    if (description.of_tensor()) return {0, tensor.encode};
    switch (description.scale) {
      case ScaleKind::e8m0: return by_exponent(amax * (1.0f / element.max));
      case ScaleKind::e8m0_floor: return by_exponent(power_below(amax) / power_below(element.max));
      case ScaleKind::power: {
        const float multiplier = power_multiplier(element.max, amax);
        return {std::bit_cast<Scale>(inverse_of_power(multiplier)), multiplier};
      }
      case ScaleKind::e4m3: break;
    }
    const Scale code = E4M3::encode(at_most_largest(amax * (tensor.encode * (1.0f / element.max))));
    return {code, at_most_largest(1.0f / (E4M3::decode(code) * tensor.inverse))};
  }
  TESSERA_FN constexpr float tensor_step(float amax) const {
    if (description.of_tensor()) return tensor_scale(amax).inverse;
    return two_levels() ? amax * (1.0f / largest) : 1.0f;
  }
  TESSERA_FN constexpr float factor_step(Scale scale, float amax) const {
    if (description.of_tensor()) return tensor_step(amax);
    if (description.scale == ScaleKind::power) return std::bit_cast<float>(scale);
    return two_levels() ? E4M3::decode(scale) : E8M0::decode(scale);
  }
  TESSERA_FN constexpr float step(Scale scale, float amax) const {
    return two_levels() ? E4M3::decode(scale) * amax * (1.0f / largest) : factor_step(scale, amax);
  }

 private:
  TESSERA_FN static constexpr float at_most_largest(float x) {
    constexpr float top = std::bit_cast<float>(0x7F7FFFFFu);
    return x < top ? x : top;
  }
  TESSERA_FN static constexpr Encoding<Scale> by_exponent(float p) {
    const std::uint32_t code = E8M0::encode_number(p);
    return {code, E8M0::multiplier_of_number(code)};
  }
  /// The largest power of two that is not above x; subnormal numbers keep their leading bit.
  TESSERA_FN static constexpr float power_below(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (bits >= 0x800000u) return std::bit_cast<float>(bits & 0x7F800000u);
    return std::bit_cast<float>(std::bit_floor(bits));
  }
};

// ---- in words: element, block and scale, "int4_1x64_e8m0", "e4m3nan_32x32_e8m0", "e4m3nan_tensor_power"

constexpr std::array<std::string_view, 3> special_names{"none", "nan", "ieee"};
constexpr std::array<std::string_view, 4> scale_names{"e8m0", "e8m0_floor", "power", "e4m3"};

inline std::string text_of(const Description& d) {
  const std::string element =
      d.exponent_bits == 0 ? "int" + std::to_string(d.mantissa_bits + 1)
                           : "e" + std::to_string(d.exponent_bits) + "m" + std::to_string(d.mantissa_bits);
  const std::string special(d.special == Special::none ? "" : special_names[static_cast<std::size_t>(d.special)]);
  const std::string block =
      d.of_tensor() ? "tensor" : std::to_string(d.block.rows) + "x" + std::to_string(d.block.columns);
  return element + special + "_" + block + "_" + std::string(scale_names[static_cast<std::size_t>(d.scale)]);
}

/// The element of a text intB or eXmY, without what is special; of any widths of one digit.
inline std::optional<Description> element_named(std::string_view text) {
  const auto digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  Description d;
  if (text.size() == 4 && text.starts_with("int") && digit(3)) {
    d.mantissa_bits = text[3] - '1';
    return d;
  }
  if (text.size() != 4 || text[0] != 'e' || text[2] != 'm' || !digit(1) || !digit(3)) return std::nullopt;
  d.exponent_bits = text[1] - '0';
  d.mantissa_bits = text[3] - '0';
  return d.exponent_bits > 0 ? std::optional(d) : std::nullopt;
}

/// A contradiction in a description, and the part to change.
struct Flaw {
  std::string_view part;  ///< element, special, block or scale
  std::string text;
};
/// The first one; empty if there is none. Sizes are looked at before what depends on them.
inline std::optional<Flaw> flaw_of(const Description& d) {
  const int bits = 1 + d.exponent_bits + d.mantissa_bits;
  if (d.exponent_bits == 0 ? bits < 2 || bits > 8 : d.exponent_bits < 2 || d.exponent_bits > 5 || bits > 8)
    return Flaw{"element", "has 2 to 8 bits: int2 to int8, or eXmY of 2 to 5 bits of exponent and 8 in all"};
  if (d.exponent_bits == 0 && d.special != Special::none)
    return Flaw{"special", "is for floating elements: an integer's codes are all numbers"};
  if (d.special == Special::ieee && d.mantissa_bits == 0)
    return Flaw{"special", "is ieee, whose NaN needs a bit of mantissa: use nan or none"};
  const auto edge = [](int n) { return n >= 1 && n <= 128 && std::has_single_bit(static_cast<unsigned>(n)); };
  if (!d.of_tensor() && (!edge(d.block.rows) || !edge(d.block.columns) || d.block.rows * d.block.columns < 16 ||
                         (d.block.rows != 1 && !d.square())))
    return Flaw{"block", "is [1, N] with N = 16, 32, 64 or 128, [N, N] with N = 4, 8, ..., 128, or tensor"};
  if (d.of_tensor() && d.scale != ScaleKind::power)
    return Flaw{"scale", "of a whole matrix is power: its amax is kept, and no scale of blocks"};
  const int significand = DescribedElement(d).significand();
  if (d.scale == ScaleKind::e4m3 && significand > 4)
    return Flaw{"scale", "is e4m3, of 4 significant bits, and the element has " + std::to_string(significand) +
                             ": their product is not exact in bf16, in which products take factors; use an element "
                             "of at most 4 (int5, e3m3, e4m3), or a scale that is a power of two"};
  return std::nullopt;
}

/// The format of such a text, if it is one without flaws.
inline std::optional<FormatId> find_described(std::string_view name) {
  const std::size_t first = name.find('_'), second = first == name.npos ? first : name.find('_', first + 1);
  if (second == name.npos) return std::nullopt;
  std::string_view element = name.substr(0, first);
  std::size_t special = 0;
  for (std::size_t i = 1; i < special_names.size(); ++i)
    if (element.ends_with(special_names[i])) special = i;
  if (special > 0) element.remove_suffix(special_names[special].size());
  std::optional<Description> d = element_named(element);
  if (!d) return std::nullopt;
  d->special = static_cast<Special>(special);
  for (const int rows : {0, 1, 4, 8, 16, 32, 64, 128})
    for (const int columns : {0, 4, 8, 16, 32, 64, 128})
      for (std::size_t kind = 0; kind < scale_names.size(); ++kind) {
        d->block = {rows, columns};
        d->scale = static_cast<ScaleKind>(kind);
        const bool whole = (rows == 0) == (columns == 0);
        if (whole && text_of(*d) == name && !flaw_of(*d)) return id_of_description(*d);
      }
  return std::nullopt;
}

/// The text of a described format, which stays.
inline std::string_view name_of_described(FormatId id) {
  static std::mutex mutex;
  static std::map<FormatId, std::string> names;
  const std::lock_guard lock(mutex);
  const auto [found, made] = names.try_emplace(id);
  if (made) found->second = text_of(description_of(id));
  return found->second;
}

}  // namespace tessera::formats
