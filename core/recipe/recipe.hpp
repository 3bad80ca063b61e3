#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "core/config/config.hpp"
#include "kernels/base/dtype.hpp"
#include "kernels/base/index.hpp"
#include "kernels/formats/id.hpp"

namespace tessera {

/// How a weight is stored: as codes of a number format, or as plain values.
struct WeightFormat {
  DType plain = DType::bf16;      ///< type of plain values, of products with them, and of the values that are quantized
  std::optional<FormatId> codes;  ///< empty: the weight is stored as plain values
  bool operator==(const WeightFormat&) const = default;
};

/// "bf16", "fp32", or the name of the codes' format.
std::string_view name_of(const WeightFormat& format);
/// Bytes of `elements` elements without scales.
std::int64_t data_bytes(const WeightFormat& format, ElementIndex elements);

/// The number formats in which a run computes: one row of the table. To add a recipe, add a row; no other code asks for
/// a recipe's name. Weights, activations and gradients are quantized all or none: see is_whole().
struct Recipe {
  std::string_view name;
  WeightFormat weight;                           ///< format of quantized weights; all others have weight.plain
  std::optional<FormatId> activation, gradient;  ///< formats of x and dy in products; empty: not quantized
  std::int64_t matrix = 1;                       ///< divides both sides of every quantized matrix
  std::int64_t rows = 1;                         ///< divides the rows of every dense product in training
  std::int64_t expert_rows = 1;                  ///< divides the row at which each expert begins
};

/// Whether a row quantizes weights, activations and gradients, or none of them. Products of quantized activations with
/// plain weights, or of quantized weights with plain gradients, do not exist: such a row would train in plain values.
constexpr bool is_whole(const Recipe& recipe) {
  const bool codes = recipe.weight.codes.has_value();
  return recipe.activation.has_value() == codes && recipe.gradient.has_value() == codes;
}

/// The whole table.
std::span<const Recipe> recipes();

/// The row that a deck asks for. Recipe `bf16` gives the row of precision.compute, where Q rounds to that type.
const Recipe& recipe_of(const PrecisionConfig& precision);

}  // namespace tessera
