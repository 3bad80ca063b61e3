#include "core/model/layers/experts.hpp"

#include "kernels/gemm/gemm.hpp"

namespace tessera {

Experts::Experts(ParamRegistry& registry, const std::string& name, const std::string& projection,
                 const ExpertsShape& shape)
    : member_{shape.out, shape.in}, accumulation_(shape.accumulation) {
  const std::string dataset = name + "." + projection + ".weight";
  const Shape all{shape.experts, shape.out, shape.in};
  const Start start = normal_start(shape.deviation);
  const int experts = static_cast<int>(shape.experts);
  if (shape.weights == ExpertWeights::single) {
    weights_.push_back(
        registry.add({dataset, member_, experts, Role::expert, start, {dataset, all, 0}, {}, shape.parts}));
    return;
  }
  for (std::int64_t e = 0; e < shape.experts; ++e)
    weights_.push_back(registry.add({name + "." + std::to_string(e) + "." + projection + ".weight",
                                     member_,
                                     1,
                                     Role::expert,
                                     start,
                                     {dataset, all, e * member_.elements()},
                                     {},
                                     shape.parts}));
}

template <class F>
void Experts::with_operands(const Call& call, Side side, const F& f) const {
  std::vector<Use> uses;
  std::vector<Operand> operands;
  uses.reserve(weights_.size());
  operands.reserve(weights_.size());
  for (ParamId weight : weights_)
    operands.push_back(*uses.emplace_back(call.weights.operand(call.stream, weight, side)));
  f(ExpertOperands{operands.data(), static_cast<int>(operands.size())});
}

void Experts::forward(const Call& call, const Tensor& y, const Tensor& x, const Tensor& offsets) const {
  with_operands(call, Side::rowwise, [&](const ExpertOperands& w) { expert_forward(call.stream, y, x, w, offsets); });
}

void Experts::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Saved& saved,
                       const Tensor& offsets) const {
  {
    const Arena::Frame frame(call.arena);
    const Tensor scratch = accumulation_ == Accumulation::unfused ? call.arena.temp(dy.type, member_) : Tensor{};
    std::vector<Gradient> sums;
    sums.reserve(weights_.size());
    for (ParamId weight : weights_) sums.push_back(call.gradients->slot(weight));
    expert_weight_gradient(call.stream, {sums.data(), static_cast<int>(sums.size())}, dy, saved.x, offsets, scratch);
    for (ParamId weight : weights_) call.gradients->written(call.stream, weight);
  }
  with_operands(call, Side::columnwise,
                [&](const ExpertOperands& w) { expert_input_gradient(call.stream, dx, dy, w, offsets); });
}

}  // namespace tessera
