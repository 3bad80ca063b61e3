#pragma once
#include "core/model/layers/linear.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// y = down(gelu(up(x))) or y = down(silu(gate(x)) * up(x)); [M,C] to [M,C].
class Mlp {
 public:
  struct Saved {
    Tensor pre;        ///< [M,F], swiglu [M,2F]; without up's bias where quantizers find the gelu
    Tensor activated;  ///< [M,F], the activation's output; not where quantizers find it
  };

  /// Registers `name`.up or `name`.gate_up, and `name`.down.
  Mlp(ParamRegistry& registry, const std::string& name, const GptShape& shape);

  Saved place(Arena& arena, std::int64_t tokens) const;
  void forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y = {}) const;
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const;

 private:
  /// Whether the quantizers before down's products and behind its input gradient find the gelu and its gradient.
  bool in_quantizers() const { return activation_ == Activation::gelu && down_.finds_gelus() && up_.finds_gelus(); }

  Activation activation_;
  std::int64_t ffn_;
  DType type_;
  Linear up_, down_;
};

}  // namespace tessera
