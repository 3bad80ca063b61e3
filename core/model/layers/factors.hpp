#pragma once
#include <span>
#include <variant>
#include <vector>

#include "core/model/layers/call.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// Makes the factors of one weight's products: values as they are where the recipe does not quantize the weight, else
/// codes, by one launch each, in the caller's arena.temp(); of activations and gradients that no unit multiplies as
/// codes the values that these stand for. The only place where a layer meets a recipe.
class Factors {
 public:
  Factors(const ParamSpec& weight, const Recipe& recipe);

  /// Whether factors are codes.
  bool coded() const { return format_.has_value(); }

  /// Whether activation() and gradient() take gelus, which no memory holds.
  bool finds_gelus() const { return activation_ && tessera::finds_gelus(*activation_); }

  /// One copy of x [M,in].
  using Input = std::variant<Tensor, Gelu>;
  static const Tensor& stored(const Input& x) {
    const Gelu* const gelu = std::get_if<Gelu>(&x);
    return gelu ? gelu->pre : std::get<Tensor>(x);
  }
  Operand activation(const Call& call, const Input& x, Side side) const;

  /// Both copies of dy [M,out]: rowwise for dx, columnwise for dw.
  struct Gradient {
    Operand rowwise, columnwise;
    Tensor addends;  ///< what the bias's gradient is the column sums of: dy, or sums of some rows each
  };
  /// `rows` (i64 [M]) numbers the rows for random rounding where they are not the micro-batch's tokens in order.
  using Output = std::variant<Tensor, GeluGradient>;
  Gradient gradient(const Call& call, const Output& dy, const Tensor& rows = {}) const;
  /// Whether gradient() draws random numbers.
  bool draws() const;

  /// One copy of the weight, as it is held: values are quantized here, codes are taken as they are.
  Operand weight(const Call& call, const Operand& held, Side side) const;
  /// The same of several parameters of one shape (discrete experts): one operand for all, or one each.
  std::vector<Operand> weights(const Call& call, std::span<const Operand> held, Side side) const;

 private:
  std::optional<FormatId> format_, activation_, gradient_;
  std::uint64_t rowwise_draws_, columnwise_draws_;
};

}  // namespace tessera
