#pragma once
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/model/layers/call.hpp"
#include "kernels/quantize/measure.hpp"

namespace tessera {

/// Makes the factors of one weight's products, each by one launch, in the caller's arena.temp(). Factors are the values
/// themselves where a slot of the weight's treatment is empty. Else they are codes of weights, and of activations and
/// gradients if tensor cores multiply them. Other activations and gradients get fake quantization (quantize-dequantize
/// to bf16). The class is the only place where a layer meets number formats.
class Factors {
 public:
  explicit Factors(const ParamSpec& weight);

  /// Whether any factor is quantized.
  bool quantizes() const { return treatment_.quantizes(); }
  /// At multiples of so many rows each expert's begin.
  std::int64_t expert_rows() const { return multiples_of(treatment_).expert_rows; }

  /// Whether activation() takes an activation function, and gradient() the gradient of one, which they compute while
  /// they quantize: one launch makes both copies.
  bool computes_activation() const { return in_one_pass(treatment_.activation.forward, treatment_.activation.wgrad); }
  bool computes_gradient() const { return in_one_pass(treatment_.gradient.dgrad, treatment_.gradient.wgrad); }

  /// One copy of x [M,in], stored or computed.
  using Input = std::variant<Tensor, Gelu, Swiglu>;
  /// Type and shape of x; its memory too where x is stored.
  static Tensor like(const Input& x);
  Operand activation(const Call& call, const Input& x, Side side) const;

  /// Saved activation: the columnwise codes of x [rows,in], which forward makes and the weight gradient reads in place
  /// of x. Empty where backward is to make them from x.
  struct Saved {
    Copy columns;
    explicit operator bool() const { return columns.data.shape.rank() > 0; }
  };
  /// Whether the weight gradient reads codes of x.
  bool quantizes_columns() const { return treatment_.activation.wgrad.has_value(); }
  /// Memory in arena.keep() for these codes. Empty if the weight gradient reads values, or the format does not take so
  /// many rows or has no columnwise copy of its own. Empty too where nothing is won: x itself is `kept`, and no launch
  /// makes both copies.
  Saved place_columns(Arena& arena, formats::Matrix x, Values values) const;
  /// Those of the first `rows` rows alone, in the same memory.
  Saved first_rows(const Saved& saved, formats::Matrix x) const;
  /// The rowwise copy of x; fills `saved`, by the same launch if it can make both.
  Operand activation(const Call& call, const Input& x, const Saved& saved) const;
  /// Fills `saved` alone (recomputation).
  void activation_columns(const Call& call, const Input& x, const Saved& saved) const;
  /// The saved codes as a factor of the weight gradient, decoded in arena.temp() if no tensor core multiplies them: the
  /// bits of activation(). Of x the shape alone is read.
  Operand columns_of(const Call& call, const Input& x, const Saved& saved) const;

  /// Both copies of dy [M,out]: rowwise for dx, columnwise for dw.
  struct Gradient {
    Operand rowwise, columnwise;
    Tensor bias_terms;  ///< its column sums are the bias's gradient: dy itself, or the sums of each 128 of its rows.
                        ///< Empty for a computed gradient without `biased`
  };
  /// `biased`: bias_terms are wanted, which the launch that makes codes sums up where it can.
  /// `rows` (i64 [M]) numbers the rows for random rounding where they are not the micro-batch's tokens in order.
  using OutputGradient = std::variant<Tensor, GeluGradient, SwigluGradient>;
  static Tensor like(const OutputGradient& dy);
  Gradient gradient(const Call& call, const OutputGradient& dy, bool biased, const Tensor& rows = {}) const;
  /// Whether gradient() draws random numbers.
  bool draws() const;

  /// One copy of the weight, as it is held: values are quantized here, codes are taken as they are.
  Operand weight(const Call& call, const Operand& held, Side side) const;
  /// The same of several parameters of one shape (discrete experts): one operand for all, or one each.
  std::vector<Operand> weights(const Call& call, std::span<const Operand> held, Side side) const;

 private:
  using Format = Treatment::Format;
  static bool in_one_pass(const Format& rowwise, const Format& columnwise) {
    return rowwise && rowwise == columnwise && quantizes_in_one_pass(*rowwise);
  }
  const Format& of_activation(Side side) const {
    return side == Side::rowwise ? treatment_.activation.forward : treatment_.activation.wgrad;
  }
  const Format& of_gradient(Side side) const {
    return side == Side::rowwise ? treatment_.gradient.dgrad : treatment_.gradient.wgrad;
  }
  const Format& of_weight(Side side) const {
    return side == Side::rowwise ? treatment_.weight.forward : treatment_.weight.dgrad;
  }
  /// Whether both copies of x are codes of one format, so that one launch makes them.
  bool makes_both() const;
  /// Whether tensor cores multiply codes of that copy of x, or of dy, by those of the product's other factor.
  bool multiplies_activation(Side side) const;
  bool multiplies_gradient(Side side) const;
  /// What is done to x, and to dy, in formats that take it.
  Purpose of_x() const { return {Purpose::Role::activation, treatment_.rotates}; }
  Purpose of_dy() const { return {Purpose::Role::gradient, treatment_.rotates, treatment_.draws}; }

  /// Shows the factor's copies of `side`, or without one both, made as `purpose` says, to the call's observers.
  void show(const Call& call, Purpose purpose, const QuantizerInput& input, const QuantizedMatrix& matrix,
            std::optional<Side> side) const;
  void show(const Call& call, Side side, std::span<const Operand> weights) const;

  Operand gradient_copy(const Call& call, const Tensor& dy, const QuantizedMatrix& of_dy, Side side) const;

  std::string weight_;  ///< its canonical name
  Treatment treatment_;
  std::uint64_t rowwise_draws_, columnwise_draws_;
};

}  // namespace tessera
