#include "core/model/layers/moe.hpp"

#include <algorithm>

#include "core/model/layers/activate.hpp"

namespace tessera {
namespace {

ExpertsShape experts_shape(const GptShape& shape, std::int64_t in, std::int64_t out, double deviation) {
  return {shape.moe->experts, in, out, deviation, shape.moe->weights, shape.accumulation, shape.recipe, {}};
}

ExpertsShape inner_shape(const GptShape& shape) {
  ExpertsShape inner =
      experts_shape(shape, shape.hidden, inner_width(shape.activation, shape.ffn), initial_deviation);
  inner.parts = inner_parts(shape.activation, shape.ffn);
  return inner;
}

}  // namespace

Moe::Moe(ParamRegistry& registry, const std::string& name, const GptShape& shape)
    : moe_(shape.moe.value()),
      activation_(shape.activation),
      hidden_(shape.hidden),
      ffn_(shape.ffn),
      length_(shape.seq_len),
      type_(shape.compute),
      sum_type_(shape.sum_type()),
      accumulation_(shape.accumulation),
      router_(add_whole(registry, name + ".router.weight", {moe_.experts, hidden_}, Role::router,
                        normal_start(initial_deviation))),
      up_(registry, name + ".experts", inner_name(activation_), inner_shape(shape)),
      down_(registry, name + ".experts", "down",
            experts_shape(shape, ffn_, hidden_, residual_deviation(shape.layers))) {}

/// Whole sequences, or a part of one.
RouterShape Moe::router_shape(std::int64_t tokens) const {
  const std::int64_t length = std::min(tokens, length_);
  return {tokens / length, length, moe_.experts, moe_.top_k, moe_.renormalize, up_.row_multiple()};
}

Moe::Saved Moe::place(Arena& arena, std::int64_t tokens) const {
  const RouterShape shape = router_shape(tokens);
  const std::int64_t rows = shape.rows();
  Saved saved;
  Routing& r = saved.routing;
  r.probabilities = arena.keep(sum_type_, {tokens, moe_.experts});
  r.log_sum = arena.keep(sum_type_, {tokens});
  r.expert = arena.keep(DType::i32, {tokens, moe_.top_k});
  r.weight = arena.keep(sum_type_, {tokens, moe_.top_k});
  r.offsets = arena.keep(DType::i32, {moe_.experts + 1});
  r.row_of_slot = arena.keep(DType::i32, {tokens, moe_.top_k});
  r.token_of_row = arena.keep(DType::i32, {rows});
  r.load = arena.keep(DType::i32, {shape.sequences, moe_.experts});
  saved.up.x = arena.keep(type_, {rows, hidden_});
  saved.pre = arena.keep(type_, {rows, inner_width(activation_, ffn_)});
  saved.down.x = arena.keep(type_, {rows, ffn_});
  saved.out = arena.keep(type_, {rows, hidden_});
  return saved;
}

void Moe::forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y) const {
  const Routing& routing = saved.routing;
  {
    const Arena::Frame frame(call.arena);
    const Tensor logits = call.arena.temp(sum_type_, routing.probabilities.shape);
    router_forward(call.stream, logits, x, call.weights.operand(call.stream, router_, Side::rowwise)->data);
    route(call.stream, call.arena, router_shape(x.rows()), routing, logits);
  }
  permute_forward(call.stream, saved.up.x, x, routing);
  up_.forward(call, saved.pre, saved.up.x, routing);
  activate(call.stream, activation_, saved.down.x, saved.pre);
  down_.forward(call, saved.out, saved.down.x, routing);
  if (y) combine_forward(call.stream, y, saved.out, routing);
}

void Moe::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const {
  const Routing& routing = saved.routing;
  const Arena::Frame frame(call.arena);
  const Tensor dweight = call.arena.temp(sum_type_, routing.weight.shape);
  {
    const Arena::Frame inner(call.arena);
    const Tensor drows = call.arena.temp(type_, saved.up.x.shape);  // of the answers, then of what was asked
    combine_backward(call.stream, drows, dweight, dy, saved.out, routing);
    const Tensor dact = call.arena.temp(type_, saved.down.x.shape);
    down_.backward(call, dact, drows, saved.down, routing);
    const Tensor dpre = activate_backward(call.stream, call.arena, activation_, dact, saved.pre);
    up_.backward(call, drows, dpre, saved.up, routing);
    permute_backward(call.stream, dx, drows, routing);
  }
  router_backward(call, dx, dweight, x, routing);
}

void Moe::router_backward(const Call& call, const Tensor& dx, const Tensor& dweight, const Tensor& x,
                          const Routing& routing) const {
  const RouterShape shape = router_shape(x.rows());
  auxiliary_losses(call.stream, call.arena, shape, routing, &call.sums->balance, &call.sums->z);
  add_busiest_expert(call.stream, shape, routing, &call.sums->busiest);
  const Tensor dlogits = call.arena.temp(sum_type_, routing.probabilities.shape);
  // The loss is a mean over tokens; the balance loss a mean over sequences, of T tokens each.
  const double balance_scale = moe_.balance_coef * call.loss_scale * static_cast<double>(length_);
  const double z_scale = moe_.z_coef * call.loss_scale;
  route_backward(call.stream, shape, dlogits, dweight, routing, balance_scale, z_scale);
  contribute(call, router_, [&](const Gradient& dw) {
    router_weight_gradient(call.stream, call.arena, dw, dlogits, x, accumulation_);
  });
  router_input_gradient(call.stream, dx, dlogits, call.weights.operand(call.stream, router_, Side::columnwise)->data);
}

}  // namespace tessera
