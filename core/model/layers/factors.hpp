#pragma once
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/model/layers/call.hpp"
#include "kernels/quantize/measure.hpp"

namespace tessera {

/// Makes the factors of one weight's products, each by one launch, in the caller's arena.temp(): the values themselves
/// if the recipe does not quantize the weight; codes of weights, and of activations and gradients if tensor cores
/// multiply them; else activations and gradients by fake quantization (quantize-dequantize to bf16). The only place
/// where a layer meets a recipe.
class Factors {
 public:
  Factors(const ParamSpec& weight, const Recipe& recipe);

  /// Whether factors are codes.
  bool coded() const { return format_.has_value(); }

  /// Whether activation() and gradient() take an activation function and its gradient, which they compute while they
  /// quantize.
  bool computes_inputs() const { return activation_ && quantizes_in_one_pass(*activation_); }

  /// One copy of x [M,in], stored or computed.
  using Input = std::variant<Tensor, Gelu, Swiglu>;
  /// Type and shape of x; its memory too where x is stored.
  static Tensor like(const Input& x);
  Operand activation(const Call& call, const Input& x, Side side) const;

  /// Saved activation: memory in arena.keep() for the columnwise codes of x [rows,in], which forward makes and the
  /// weight gradient reads. Empty if tensor cores do not multiply such codes, or the format does not take so many rows.
  Copy place_columns(Arena& arena, formats::Matrix x) const;
  /// Quantizes x once into both copies: returns the rowwise one and saves the columnwise one in `columns`.
  Operand activation(const Call& call, const Input& x, const Copy& columns) const;
  /// Saves the columnwise copy alone in `columns` (recomputation); the saved copy as a factor of the weight gradient.
  void activation_columns(const Call& call, const Input& x, const Copy& columns) const;
  Operand columns_of(const Input& x, const Copy& columns) const;

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
  void quantize_activation(const Call& call, const Input& x, const QuantizedMatrix& matrix) const;
  /// Shows the copy of `side`, or without one both copies, to the call's observer.
  void show(const Call& call, Purpose purpose, const QuantizerInput& input, const QuantizedMatrix& matrix,
            std::optional<Side> side) const;

  std::string weight_;
  std::optional<FormatId> format_, activation_, gradient_;
  std::uint64_t rowwise_draws_, columnwise_draws_;
};

}  // namespace tessera
