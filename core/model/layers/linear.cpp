#include "core/model/layers/linear.hpp"

#include "kernels/gemm/gemm.hpp"

namespace tessera {

Linear::Linear(ParamRegistry& registry, const std::string& name, const LinearShape& shape)
    : weight_(add_whole(registry, name + ".weight", {shape.out, shape.in}, Role::matrix, normal_start(shape.deviation),
                        shape.parts)),
      accumulation_(shape.accumulation),
      factors_(registry[weight_], shape.recipe) {
  if (shape.bias) bias_ = add_whole(registry, name + ".bias", {shape.out}, Role::bias, {});
}

void Linear::multiply(const Call& call, const Tensor& y, const Factors::Input& x,
                      const std::optional<ParamId>& bias) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  const Use w = call.weights.operand(call.stream, weight_, Side::rowwise);
  linear_forward(call.stream, y, factors_.activation(call, x, Side::rowwise), factors_.weight(call, *w, Side::rowwise),
                 use_of(call, bias)->data);
}

void Linear::forward(const Call& call, const Tensor& y, const Factors::Input& x) const { multiply(call, y, x, bias_); }

void Linear::forward_without_bias(const Call& call, const Tensor& y, const Tensor& x) const {
  multiply(call, y, x, {});
}

void Linear::forward_gelu(const Call& call, const Tensor& y, const Tensor& pre, const Tensor& x) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  const Use w = call.weights.operand(call.stream, weight_, Side::rowwise);
  linear_gelu_forward(call.stream, y, pre, factors_.activation(call, x, Side::rowwise),
                      factors_.weight(call, *w, Side::rowwise), use_of(call, bias_)->data);
}

void Linear::weight_gradient(const Call& call, const Gradient& dw, const Operand& dy, const Factors::Input& x) const {
  const Arena::Frame frame(call.arena);
  const Operand columns = factors_.activation(call, x, Side::columnwise);
  if (accumulation_ == Accumulation::fused) return linear_weight_gradient(call.stream, dw, dy, columns);
  const Tensor product = call.arena.temp(Factors::stored(x).type, dw.sum.shape);
  linear_weight_gradient(call.stream, {product}, dy, columns);
  accumulate(call.stream, dw, product);
}

Operand Linear::gradients(const Call& call, const Factors::Output& dy, const Saved& saved) const {
  const Factors::Gradient factor = factors_.gradient(call, dy);
  if (bias_) contribute(call, *bias_, [&](const Gradient& db) { bias_gradient(call.stream, db, factor.addends); });
  contribute(call, weight_, [&](const Gradient& dw) { weight_gradient(call, dw, factor.columnwise, saved.x); });
  return factor.rowwise;
}

// Gradients first: the reduction of a finished group runs under the product that follows.
void Linear::backward(const Call& call, const Tensor& dx, const Factors::Output& dy, const Saved& saved) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  const Operand factor = gradients(call, dy, saved);
  const Use w = call.weights.operand(call.stream, weight_, Side::columnwise);
  linear_input_gradient(call.stream, dx, factor, factors_.weight(call, *w, Side::columnwise));
}

void Linear::backward_gelu(const Call& call, const Tensor& dpre, const Tensor& dy, const Saved& saved,
                           const Tensor& pre) const {
  const Region region(call.stream, region_);
  const Arena::Frame frame(call.arena);
  const Operand factor = gradients(call, dy, saved);
  const Use w = call.weights.operand(call.stream, weight_, Side::columnwise);
  linear_gelu_input_gradient(call.stream, dpre, factor, factors_.weight(call, *w, Side::columnwise), pre);
}

}  // namespace tessera
