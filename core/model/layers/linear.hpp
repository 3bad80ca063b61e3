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
  Recipe recipe = {};
  Shape parts = {};  ///< of the weight, as in ParamSpec
};

/// y = x W^T + b, with x [M,in], W [out,in].
class Linear {
 public:
  /// All that backward needs: x in the compute type, or a gelu's input, which the caller keeps.
  struct Saved {
    Factors::Input x;  ///< [M,in]
  };

  /// Registers `name`.weight and, with a bias, `name`.bias.
  Linear(ParamRegistry& registry, const std::string& name, const LinearShape& shape);
  /// On a matrix [out,in] that is registered already, whose products count for `region`.
  Linear(const ParamRegistry& registry, ParamId weight, Accumulation accumulation, const Recipe& recipe,
         RegionName region)
      : weight_(weight), accumulation_(accumulation), factors_(registry[weight], recipe), region_(region) {}

  void forward(const Call& call, const Tensor& y, const Factors::Input& x) const;
  /// y = x W^T, for callers that add bias() themselves.
  void forward_without_bias(const Call& call, const Tensor& y, const Tensor& x) const;
  /// pre = x W^T + b and y = gelu(pre), in one product.
  void forward_gelu(const Call& call, const Tensor& y, const Tensor& pre, const Tensor& x) const;
  /// Adds to the gradients, then dx = dy W.
  void backward(const Call& call, const Tensor& dx, const Factors::Output& dy, const Saved& saved) const;
  /// The same where saved.x is the values of gelu(pre): dpre = (dy W) gelu'(pre), in one product if the back end has
  /// one.
  void backward_gelu(const Call& call, const Tensor& dpre, const Tensor& dy, const Saved& saved,
                     const Tensor& pre) const;

  /// The bias, if the layer has one.
  Use bias(const Call& call) const { return use_of(call, bias_); }

  /// Whether products take codes.
  bool coded() const { return factors_.coded(); }
  /// Whether x may be a gelu that no memory holds, and dy its gradient.
  bool finds_gelus() const { return factors_.finds_gelus(); }

 private:
  void multiply(const Call& call, const Tensor& y, const Factors::Input& x, const std::optional<ParamId>& bias) const;
  /// Adds the gradients of bias and weight; returns the copy of dy that dx is made from, in the caller's Frame.
  Operand gradients(const Call& call, const Factors::Output& dy, const Saved& saved) const;
  void weight_gradient(const Call& call, const Gradient& dw, const Operand& dy, const Factors::Input& x) const;

  ParamId weight_;
  std::optional<ParamId> bias_;
  Accumulation accumulation_;
  Factors factors_;
  RegionName region_ = RegionName::products;
};

}  // namespace tessera
