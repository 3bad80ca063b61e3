#pragma once
#include "core/device/region.hpp"
#include "core/model/layers/factors.hpp"
#include "core/model/layers/parameter.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera {

struct LinearShape {
  std::int64_t in = 0, out = 0;
  double deviation = initial_deviation;
  bool bias = false;
  Accumulation accumulation = Accumulation::fused;
  MatrixName part = MatrixName::other;
  Shape parts = {};  ///< of the weight, as in ParamSpec, as is `part`
};

/// y = x W^T + b, with x [M,in], W [out,in].
class Linear {
 public:
  using Saved = Factors::Saved;

  /// Registers `name`.weight and, with a bias, `name`.bias.
  Linear(ParamRegistry& registry, const std::string& name, const LinearShape& shape);
  /// On a matrix [out,in] that is registered already, whose products count for `region`.
  Linear(const ParamRegistry& registry, ParamId weight, Accumulation accumulation, RegionName region)
      : weight_(weight),
        in_(registry[weight].member[1]),
        accumulation_(accumulation),
        factors_(registry[weight]),
        region_(region) {}

  /// `x`: whether the caller keeps the input for others.
  Saved place(Arena& arena, std::int64_t rows, Values x) const {
    return factors_.place_columns(arena, {rows, in_}, x);
  }
  /// Fills y and, where a backward follows, saved; without y only saved is wanted.
  void forward(const Call& call, const Tensor& y, const Factors::Input& x, const Saved& saved = {}) const;
  /// pre = x W^T + b and y = gelu(pre), in one product.
  void forward_gelu(const Call& call, const Tensor& y, const Tensor& pre, const Tensor& x, const Saved& saved) const;
  /// Adds to the gradients, then dx = dy W. Of x with saved codes, only the shape is read.
  void backward(const Call& call, const Tensor& dx, const Factors::OutputGradient& dy, const Factors::Input& x,
                const Saved& saved = {}) const;
  /// The same where x is the values of gelu(pre): dpre = (dy W) gelu'(pre), in one product if the back end has one.
  void backward_gelu(const Call& call, const Tensor& dpre, const Tensor& dy, const Tensor& x, const Tensor& pre,
                     const Saved& saved) const;

  /// Whether any factor of its products is quantized; whether the weight's gradient reads codes of x.
  bool quantizes() const { return factors_.quantizes(); }
  bool quantizes_columns() const { return factors_.quantizes_columns(); }
  /// Whether x, and dy, may be computed from an activation's input while they are quantized.
  bool computes_activation() const { return factors_.computes_activation(); }
  bool computes_gradient() const { return factors_.computes_gradient(); }

 private:
  /// The rowwise factor of x, in the caller's Frame; fills `saved` where a backward follows.
  Operand activation(const Call& call, const Factors::Input& x, const Saved& saved) const;
  /// Adds the gradients of bias and weight; returns the copy of dy that dx is made from, in the caller's Frame.
  Operand gradients(const Call& call, const Factors::OutputGradient& dy, const Factors::Input& x,
                    const Saved& saved) const;
  void weight_gradient(const Call& call, const Gradient& dw, const Operand& dy, const Factors::Input& x,
                       const Saved& saved) const;

  ParamId weight_;
  std::int64_t in_;
  std::optional<ParamId> bias_;
  Accumulation accumulation_;
  Factors factors_;
  RegionName region_ = RegionName::products;
};

}  // namespace tessera
