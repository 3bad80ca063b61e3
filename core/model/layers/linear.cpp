#include "core/model/layers/linear.hpp"

#include "kernels/gemm/gemm.hpp"

namespace tessera {

Linear::Linear(ParamRegistry& registry, const std::string& name, const LinearShape& shape)
    : weight_(add_whole(registry, name + ".weight", {shape.out, shape.in}, Role::matrix, normal_start(shape.deviation),
                        shape.parts, shape.part)),
      in_(shape.in),
      accumulation_(shape.accumulation),
      factors_(registry[weight_]) {
  if (shape.bias) bias_ = add_whole(registry, name + ".bias", {shape.out}, Role::bias, {});
}

Operand Linear::activation(const Call& call, const Factors::Input& x, const Saved& saved) const {
  return saved && call.gradients ? factors_.activation(call, x, saved)
                                 : factors_.activation(call, x, Side::rowwise);
}

void Linear::forward(const Call& call, const Tensor& y, const Factors::Input& x, const Saved& saved) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  if (!y) {
    if (saved && call.gradients) factors_.activation_columns(call, x, saved);
    return;
  }
  const Use w = call.weights.operand(call.stream, weight_, Side::rowwise);
  linear_forward(call.stream, y, activation(call, x, saved), factors_.weight(call, *w, Side::rowwise),
                 use_of(call, bias_)->data);
}

void Linear::forward_gelu(const Call& call, const Tensor& y, const Tensor& pre, const Tensor& x,
                          const Saved& saved) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  const Use w = call.weights.operand(call.stream, weight_, Side::rowwise);
  linear_gelu_forward(call.stream, y, pre, activation(call, x, saved), factors_.weight(call, *w, Side::rowwise),
                      use_of(call, bias_)->data);
}

void Linear::weight_gradient(const Call& call, const Gradient& dw, const Operand& dy, const Factors::Input& x,
                             const Saved& saved) const {
  const Arena::Frame frame(call.arena);
  const Operand columns =
      saved ? factors_.columns_of(call, x, saved) : factors_.activation(call, x, Side::columnwise);
  if (accumulation_ == Accumulation::fused) return linear_weight_gradient(call.stream, dw, dy, columns);
  const Tensor product = call.arena.temp(Factors::like(x).type, dw.sum.shape);
  linear_weight_gradient(call.stream, {product}, dy, columns);
  accumulate(call.stream, dw, product);
}

Operand Linear::gradients(const Call& call, const Factors::OutputGradient& dy, const Factors::Input& x,
                          const Saved& saved) const {
  const Factors::Gradient factor = factors_.gradient(call, dy, bias_.has_value());
  if (bias_) contribute(call, *bias_, [&](const Gradient& db) { bias_gradient(call.stream, db, factor.bias_terms); });
  contribute(call, weight_, [&](const Gradient& dw) { weight_gradient(call, dw, factor.columnwise, x, saved); });
  return factor.rowwise;
}

// Gradients first: the reduction of a finished group runs under the product that follows.
void Linear::backward(const Call& call, const Tensor& dx, const Factors::OutputGradient& dy, const Factors::Input& x,
                      const Saved& saved) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  const Operand factor = gradients(call, dy, x, saved);
  const Use w = call.weights.operand(call.stream, weight_, Side::columnwise);
  linear_input_gradient(call.stream, dx, factor, factors_.weight(call, *w, Side::columnwise));
}

void Linear::backward_gelu(const Call& call, const Tensor& dpre, const Tensor& dy, const Tensor& x, const Tensor& pre,
                           const Saved& saved) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  const Operand factor = gradients(call, dy, x, saved);
  const Use w = call.weights.operand(call.stream, weight_, Side::columnwise);
  linear_gelu_input_gradient(call.stream, dpre, factor, factors_.weight(call, *w, Side::columnwise), pre);
}

}  // namespace tessera
