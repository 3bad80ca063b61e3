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
  return {arena.keep(type_, {tokens, inner_width(activation_, ffn_)}), {arena.keep(type_, {tokens, ffn_})}};
}

void Mlp::forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y) const {
  if (activation_ == Activation::gelu) {
    up_.forward_gelu(call, saved.down.x, saved.pre, x);
  } else {
    up_.forward(call, saved.pre, x);
    activate(call.stream, activation_, saved.down.x, saved.pre);
  }
  if (y) down_.forward(call, y, saved.down.x);
}

void Mlp::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const {
  const Arena::Frame frame(call.arena);
  const Tensor dact = call.arena.temp(type_, saved.down.x.shape);
  if (activation_ == Activation::gelu) {
    down_.backward_gelu(call, dact, dy, saved.down, saved.pre);
    return up_.backward(call, dx, dact, {x});
  }
  down_.backward(call, dact, dy, saved.down);
  up_.backward(call, dx, activate_backward(call.stream, call.arena, activation_, dact, saved.pre), {x});
}

}  // namespace tessera
