#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/config/choices.hpp"
#include "core/config/rule.hpp"
#include "core/config/structure.hpp"
#include "kernels/formats/described.hpp"

/// Values of precision.formats: number formats that a deck describes.
namespace tessera {

template <> struct Names<formats::Special> {
  static constexpr Name<formats::Special> table[] = {{formats::Special::none, "none"},
                                                     {formats::Special::nan, "nan"},
                                                     {formats::Special::ieee, "ieee"}};
};
template <> struct Names<formats::ScaleKind> {
  static constexpr Name<formats::ScaleKind> table[] = {{formats::ScaleKind::e8m0, "e8m0"},
                                                       {formats::ScaleKind::e8m0_floor, "e8m0_floor"},
                                                       {formats::ScaleKind::power, "power"},
                                                       {formats::ScaleKind::e4m3, "e4m3"}};
};
template <> struct Names<formats::Columnwise> {
  static constexpr Name<formats::Columnwise> table[] = {{formats::Columnwise::requantized, "requantized"},
                                                        {formats::Columnwise::shared, "shared"}};
};

/// An element: eXmY, or intB.
struct FormatElement {
  int exponent_bits = 0, mantissa_bits = 0;

  static constexpr const char* allowed = "int2 to int8, or eXmY: X = 2 to 5 bits of exponent, Y of mantissa, 8 in all";
  bool operator==(const FormatElement&) const = default;
};
std::string deck_text(const FormatElement& element);
template <> struct TypeName<FormatElement> { static constexpr const char* text = "an element"; };
template <> inline std::vector<std::string> choices_of<FormatElement>() { return {}; }

/// Rows and columns of a block; 0 x 0: the whole matrix.
struct FormatBlock {
  std::int64_t rows = 0, columns = 0;

  static constexpr const char* allowed = "[1, N], N = 16, 32, 64 or 128 | [N, N], N = 4, 8, 16, 32, 64 or 128 | tensor";
  bool operator==(const FormatBlock&) const = default;
};
std::string deck_text(const FormatBlock& block);
template <> struct TypeName<FormatBlock> { static constexpr const char* text = "a block"; };
template <> inline std::vector<std::string> choices_of<FormatBlock>() { return {"tensor"}; }

/// A format of the deck's own.
struct FormatConfig {
  FormatElement element;
  formats::Special special = formats::Special::none;
  FormatBlock block;
  formats::ScaleKind scale = formats::ScaleKind::e8m0;
  Derived<formats::Columnwise> columns;

  static constexpr const char* type_name = "a format";
  static constexpr const char* allowed = "{element: ..., special: ..., block: ..., scale: ..., columns: ...}";
  static constexpr std::array<std::string_view, 0> short_forms = {};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("element", self.element, OneOf(), may_change,
               "Numbers of 2 to 8 bits: eXmY is floating, with subnormal numbers, nearest even and saturating; intB is "
               "whole");
    v.key("special", self.special, OneOf(), may_change,
          "Codes of eXmY that are no numbers. none; nan: that of all ones, as E4M3 has it; ieee: those of the top "
          "exponent, as E5M2 has them");
    v.required("block", self.block, OneOf(), may_change,
               "Rows and columns that share a scale. [1, N]: along what a product sums over; [N, N]; tensor: all");
    v.required("scale", self.scale, OneOf(), may_change,
               "Scale of a block. e8m0: a power of two in a byte, rounded up, as mxfp8's; e8m0_floor: as OCP rounds; "
               "power: one in fp32, as fp8_block's; e4m3: an E4M3 number and the matrix's amax, as nvfp4's");
    v.derived("columns", self.columns, OneOf(), may_change, "requantized for [1, N], else shared",
              "The copy whose blocks run along columns. requantized: from the values, on its own; shared: the codes of "
              "the rows' copy");
  }
  bool operator==(const FormatConfig&) const = default;
};

using NamedFormats = std::map<std::string, FormatConfig>;

/// The description in numbers, whether or not a format can be so.
formats::Description description_of(const FormatConfig& format);

}  // namespace tessera
