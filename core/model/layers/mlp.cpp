#include "core/model/layers/mlp.hpp"

#include "core/model/layers/activate.hpp"

namespace tessera {

Mlp::Mlp(ParamRegistry& registry, const std::string& name, const GptShape& shape)
    : activation_(shape.activation),
      ffn_(shape.ffn),
      type_(shape.compute),
      keep_(shape.keep),
      up_(registry, name + "." + inner_name(activation_),
          {shape.hidden, inner_width(activation_, ffn_), initial_deviation, shape.bias, shape.accumulation,
           MatrixName::mlp_up, inner_parts(activation_, ffn_)}),
      down_(registry, name + ".down",
            {ffn_, shape.hidden, residual_deviation(shape.layers), shape.bias, shape.accumulation,
             MatrixName::mlp_down, {}}) {}

bool Mlp::activates_in_quantizers() const {
  return fits_quantizers(activation_, ffn_) && down_.computes_activation() && up_.computes_gradient();
}

bool Mlp::activates_again() const {
  const bool same_bits = is_gated(activation_) || activates_in_quantizers();
  return same_bits && keep_.makes_activation_again(down_.quantizes_columns());
}

Mlp::Saved Mlp::place(Arena& arena, std::int64_t tokens, Values x) const {
  const bool in_quantizers = activates_in_quantizers();
  Saved saved;
  saved.pre = arena.keep(type_, {tokens, inner_width(activation_, ffn_)});
  saved.activated = {nullptr, type_, {tokens, ffn_}};
  saved.of_up = up_.place(arena, tokens, x);
  if (activates_again()) return saved;
  saved.of_down = down_.place(arena, tokens, in_quantizers ? Values::kept : Values::passing);
  if (!saved.of_down && !in_quantizers) saved.activated = arena.keep(type_, saved.activated.shape);
  return saved;
}

Tensor Mlp::activated(const Call& call, const Saved& saved) const {
  return saved.activated ? saved.activated : call.arena.temp(type_, saved.activated.shape);
}

void Mlp::forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y) const {
  if (activates_in_quantizers()) {
    up_.forward(call, saved.pre, x, saved.of_up);
    return down_.forward(call, y, activation_of(activation_, saved.pre), saved.of_down);
  }
  const Arena::Frame frame(call.arena);
  const Tensor activated = this->activated(call, saved);
  if (activation_ == Activation::gelu) {
    up_.forward_gelu(call, activated, saved.pre, x, saved.of_up);
  } else {
    up_.forward(call, saved.pre, x, saved.of_up);
    activate(call.stream, activation_, activated, saved.pre);
  }
  down_.forward(call, y, activated, saved.of_down);
}

void Mlp::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const {
  const Arena::Frame frame(call.arena);
  const Tensor dact = call.arena.temp(type_, {x.rows(), ffn_});
  if (activates_in_quantizers()) {
    down_.backward(call, dact, dy, activation_of(activation_, saved.pre), saved.of_down);
    return up_.backward(call, dx, activation_gradient_of(activation_, dact, saved.pre), x, saved.of_up);
  }
  if (activation_ == Activation::gelu) {
    down_.backward_gelu(call, dact, dy, saved.activated, saved.pre, saved.of_down);
    return up_.backward(call, dx, dact, x, saved.of_up);
  }
  if (activates_again()) {
    const Arena::Frame again(call.arena);
    const Tensor activated = this->activated(call, saved);
    activate(call.stream, activation_, activated, saved.pre);
    down_.backward(call, dact, dy, activated, saved.of_down);
  } else {
    down_.backward(call, dact, dy, saved.activated, saved.of_down);
  }
  up_.backward(call, dx, activate_backward(call.stream, call.arena, activation_, dact, saved.pre), x, saved.of_up);
}

}  // namespace tessera
