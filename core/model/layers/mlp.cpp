#include "core/model/layers/mlp.hpp"

#include "core/model/layers/activate.hpp"

namespace tessera {

Mlp::Mlp(ParamRegistry& registry, const std::string& name, const GptShape& shape)
    : activation_(shape.activation),
      ffn_(shape.ffn),
      type_(shape.compute),
      up_(registry, name + "." + inner_name(activation_),
          {shape.hidden, inner_width(activation_, ffn_), initial_deviation, shape.bias, shape.accumulation,
           shape.recipe, inner_parts(activation_, ffn_)}),
      down_(registry, name + ".down",
            {ffn_, shape.hidden, residual_deviation(shape.layers), shape.bias, shape.accumulation, shape.recipe, {}}) {}

Mlp::Saved Mlp::place(Arena& arena, std::int64_t tokens) const {
  const Tensor pre = arena.keep(type_, {tokens, inner_width(activation_, ffn_)});
  return {pre, in_quantizers() ? Tensor() : arena.keep(type_, {tokens, ffn_})};
}

void Mlp::forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y) const {
  if (in_quantizers()) {
    up_.forward_without_bias(call, saved.pre, x);
    if (!y) return;
    const Use bias = up_.bias(call);
    return down_.forward(call, y, Gelu{saved.pre, bias->data});
  }
  if (activation_ == Activation::gelu) {
    up_.forward_gelu(call, saved.activated, saved.pre, x);
  } else {
    up_.forward(call, saved.pre, x);
    activate(call.stream, activation_, saved.activated, saved.pre);
  }
  if (y) down_.forward(call, y, saved.activated);
}

void Mlp::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const {
  const Arena::Frame frame(call.arena);
  const Tensor dact = call.arena.temp(type_, {x.rows(), ffn_});
  if (in_quantizers()) {
    const Use bias = up_.bias(call);
    down_.backward(call, dact, dy, {Gelu{saved.pre, bias->data}});
    return up_.backward(call, dx, GeluGradient{dact, saved.pre, bias->data}, {x});
  }
  if (activation_ == Activation::gelu) {
    down_.backward_gelu(call, dact, dy, {saved.activated}, saved.pre);
    return up_.backward(call, dx, dact, {x});
  }
  down_.backward(call, dact, dy, {saved.activated});
  up_.backward(call, dx, activate_backward(call.stream, call.arena, activation_, dact, saved.pre), {x});
}

}  // namespace tessera
