#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "core/config/config.hpp"
#include "kernels/base/dtype.hpp"
#include "kernels/base/index.hpp"
#include "kernels/formats/id.hpp"

namespace tessera {

/// What a weight is: codes of a number format, or without one plain values. Compared whole.
struct WeightFormat {
  DType plain = DType::bf16;      ///< type of values, of products with them, and of what codes are made from
  std::optional<FormatId> codes;  ///< none: the weight is its plain values
  bool operator==(const WeightFormat&) const = default;
};

/// "bf16", "fp32", or the name of the format that its codes have.
std::string_view name_of(const WeightFormat& format);
/// Bytes of `elements` elements, scales not counted.
std::int64_t data_bytes(const WeightFormat& format, ElementIndex elements);

/// In which formats a run computes: one row of the table. A further recipe is a row, never a condition elsewhere.
struct Recipe {
  std::string_view name;
  WeightFormat weight;                           ///< format of quantized weights; all others have weight.plain
  std::optional<FormatId> activation, gradient;  ///< formats of x and dy in products; none: not quantized
  std::int64_t matrix = 1;                       ///< sides of every quantized matrix are multiples of it
  std::int64_t rows = 1;                         ///< rows of every dense product in training are multiples of it
  std::int64_t expert_rows = 1;                  ///< each expert's rows begin at a multiple of it
};

/// The whole table.
std::span<const Recipe> recipes();

/// The row that a deck asks for: with `bf16` that of its compute type, where Q is the rounding to that type.
const Recipe& recipe_of(const PrecisionConfig& precision);

}  // namespace tessera
