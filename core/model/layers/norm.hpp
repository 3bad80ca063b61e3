#pragma once
#include "core/device/region.hpp"
#include "core/model/layers/parameter.hpp"
#include "core/model/layers/residual.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// y = norm(x + branch) w + b over rows of width C; makes the residual stream's sum on the way.
class NormLayer {
 public:
  struct Saved {
    Tensor mean, rstd;  ///< [M]; no mean for rms
    Tensor y;           ///< [M,C], the input of what follows; without memory where backward does not read it
    std::int64_t rows() const { return y.rows(); }
  };

  /// Registers `name`.weight and, for a layer norm in a model with biases, `name`.bias.
  NormLayer(ParamRegistry& registry, const std::string& name, const GptShape& shape);

  Saved place(Arena& arena, std::int64_t tokens, Values output = Values::kept) const;
  /// The output is saved.y; nothing else is written but x.sum.
  void forward(const Call& call, const Residual& x, const Saved& saved) const;
  /// dx += gradient through the norm: dx [M,C] is the gradient of the residual stream, x its sum.
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const;

 private:
  Norm kind_;
  std::int64_t width_;
  double eps_;
  DType type_, sum_type_;
  ParamId weight_;
  std::optional<ParamId> bias_;
};

}  // namespace tessera
