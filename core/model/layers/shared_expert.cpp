#include "core/model/layers/shared_expert.hpp"

#include "kernels/moe/moe.hpp"

namespace tessera {
namespace {

GptShape mlp_shape(const GptShape& shape) {
  GptShape mlp = shape;
  mlp.ffn = shape.moe.value().shared_ffn;
  mlp.bias = false;
  return mlp;
}

}  // namespace

SharedExpert::SharedExpert(ParamRegistry& registry, const std::string& name, const GptShape& shape)
    : accumulation_(shape.accumulation),
      type_(shape.compute),
      sum_type_(shape.sum_type()),
      hidden_(shape.hidden),
      mlp_(registry, name, mlp_shape(shape)) {
  if (shape.moe->shared_gate)
    gate_ = add_whole(registry, name + ".gate.weight", {1, hidden_}, Role::router, normal_start(initial_deviation));
}

SharedExpert::Saved SharedExpert::place(Arena& arena, std::int64_t tokens) const {
  const Mlp::Saved mlp = mlp_.place(arena, tokens, Values::kept);  // the router reads x
  if (!gate_) return {mlp, {}, {}};
  const Tensor logits = arena.keep(sum_type_, {tokens, 1});
  return {mlp, logits, arena.keep(type_, {tokens, hidden_})};
}

void SharedExpert::forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y) const {
  if (!gate_) return mlp_.forward(call, x, saved.mlp, y);
  mlp_.forward(call, x, saved.mlp, saved.answer);
  router_forward(call.stream, saved.logits, x, call.weights.operand(call.stream, *gate_, Side::rowwise)->data);
  if (y) gate_forward(call.stream, y, saved.answer, saved.logits);
}

void SharedExpert::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x,
                            const Saved& saved) const {
  if (!gate_) return mlp_.backward(call, dx, dy, x, saved.mlp);
  const Arena::Frame frame(call.arena);
  const Tensor danswer = call.arena.temp(type_, dy.shape), dlogits = call.arena.temp(sum_type_, saved.logits.shape);
  gate_backward(
      call.stream,
      {.danswer = danswer, .dlogits = dlogits, .dy = dy, .answer = saved.answer, .logits = saved.logits});
  contribute(call, *gate_, [&](const Gradient& dw) {
    router_weight_gradient(call.stream, call.arena, dw, dlogits, x, accumulation_);
  });
  mlp_.backward(call, dx, danswer, x, saved.mlp);
  router_input_gradient(call.stream, dx, dlogits, call.weights.operand(call.stream, *gate_, Side::columnwise)->data);
}

}  // namespace tessera
