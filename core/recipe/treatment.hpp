#pragma once
#include <array>
#include <climits>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// The number formats in which one matrix W [out,in] is multiplied: a slot for each factor of its three products. They
/// are forward, y = x W^T, dgrad, dx = dy W, and wgrad, dW = dy^T x. An empty slot is not quantized.
struct Treatment {
  using Format = std::optional<FormatId>;
  struct Weight {
    Format forward, dgrad;
    bool operator==(const Weight&) const = default;
  };
  struct Activation {
    Format forward, wgrad;
    bool operator==(const Activation&) const = default;
  };
  struct Gradient {
    Format dgrad, wgrad;
    bool operator==(const Gradient&) const = default;
  };

  DType plain = DType::bf16;  ///< type of values that are not quantized
  Weight weight = {};
  Activation activation = {};
  Gradient gradient = {};
  bool draws = false;    ///< gradients are rounded at random, in formats that can be
  bool rotates = false;  ///< both factors of wgrad are rotated before they are quantized

  std::array<Format, 6> slots() const {
    return {weight.forward, weight.dgrad, activation.forward, activation.wgrad, gradient.dgrad, gradient.wgrad};
  }
  bool quantizes() const;
  /// How the weight is stored where weights are held quantized: as codes if one format serves both of its products.
  WeightFormat held() const;
  bool operator==(const Treatment&) const = default;
};

/// The formats of weight, activations and gradients in words, and what is done to values besides: "weight nvfp4, x
/// nvfp4_1d, dy nvfp4_1d / bf16" where dgrad and wgrad differ.
std::string text_of(const Treatment& treatment);
/// The same of the slots of one factor.
std::string text_of(const Treatment::Weight& slots);
std::string text_of(const Treatment::Activation& slots);
std::string text_of(const Treatment::Gradient& slots);

/// What must divide the sizes of a matrix's products in training.
struct Multiples {
  std::int64_t out = 1, in = 1;   ///< sides of the matrix
  std::int64_t rows = 1;          ///< rows of x and dy in a dense product
  std::int64_t expert_rows = 1;   ///< the row at which each expert begins
};
Multiples multiples_of(const Treatment& treatment);

/// What rules call a matrix of a block, or the head.
enum class MatrixName : std::uint8_t {
  other,
  attention_qkv,
  attention_out,
  mlp_up,
  mlp_down,
  experts_up,
  experts_down,
  head
};
/// "attention.qkv"; of `other` "other".
std::string_view name_of(MatrixName part);

/// Blocks first, first + 1, ... before end.
struct BlockRange {
  std::int64_t first = 0, end = INT_MAX;
  bool contains(std::int64_t block) const { return first <= block && block < end; }
};

/// The treatment of the matrices of some blocks and parts.
struct TreatmentRule {
  std::vector<BlockRange> blocks = {};  ///< empty: all, and what belongs to no block
  std::vector<MatrixName> parts = {};         ///< empty: all but the head
  Treatment treatment = {};

  bool matches(std::int64_t block, MatrixName part) const;
};

/// Which matrices a run quantizes, and how.
struct TreatmentRules {
  Treatment standard = {};               ///< of blocks' matrices that no rule matches
  std::vector<TreatmentRule> list = {};  ///< of those that match a matrix the last one decides

  Treatment plain() const { return {.plain = standard.plain}; }
  /// The index in `list` of the rule that decides, -1 where none matches; and the treatment. `block` is -1 where a
  /// matrix belongs to none.
  int decider(std::int64_t block, MatrixName part) const;
  Treatment of(std::int64_t block, MatrixName part) const;
};

}  // namespace tessera
