#pragma once
#include "core/model/layers/linear.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// y = down(gelu(up(x))) or y = down(silu(gate(x)) * up(x)); [M,C] to [M,C].
class Mlp {
 public:
  struct Saved {
    Tensor pre;        ///< [M,F], swiglu [M,2F]
    Tensor activated;  ///< [M,F], the activation's output; without memory where down keeps its codes, a quantizer
                       ///< computes it, or backward makes it again
    Linear::Saved of_up, of_down;  ///< what the two layers keep
  };

  /// Registers `name`.up or `name`.gate_up, and `name`.down.
  Mlp(ParamRegistry& registry, const std::string& name, const GptShape& shape);

  /// `x`: whether the input is kept for others.
  Saved place(Arena& arena, std::int64_t tokens, Values x = Values::passing) const;
  /// Whether backward reads the values of x, and not its shape alone.
  static bool reads_input(const Saved& saved) { return !saved.of_up; }
  void forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y = {}) const;
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const;

 private:
  /// Whether quantizers compute the activation (down's input) and its gradient (up's gradient), so that neither is
  /// stored.
  bool activates_in_quantizers() const;
  /// Whether backward recomputes down's input, values or codes, from `pre`. A gelu that a product computes has other
  /// bits than that of the rounded `pre`, so that it is kept.
  bool activates_again() const;
  /// What down multiplies, kept or, in the caller's frame, to be written.
  Tensor activated(const Call& call, const Saved& saved) const;

  Activation activation_;
  std::int64_t ffn_;
  DType type_;
  KeepRules keep_;
  Linear up_, down_;
};

}  // namespace tessera
