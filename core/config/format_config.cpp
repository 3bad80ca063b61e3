#include "core/config/format_config.hpp"

namespace tessera {

std::string deck_text(const FormatElement& element) {
  if (element.exponent_bits == 0) return "int" + std::to_string(element.mantissa_bits + 1);
  return "e" + std::to_string(element.exponent_bits) + "m" + std::to_string(element.mantissa_bits);
}

std::string deck_text(const FormatBlock& block) {
  if (block == FormatBlock()) return "tensor";
  return "[" + std::to_string(block.rows) + ", " + std::to_string(block.columns) + "]";
}

formats::Description description_of(const FormatConfig& format) {
  return {format.element.exponent_bits,
          format.element.mantissa_bits,
          format.special,
          {static_cast<int>(format.block.rows), static_cast<int>(format.block.columns)},
          format.scale};
}

}  // namespace tessera
