#include "core/model/layers/experts.hpp"

#include "kernels/gemm/gemm.hpp"

namespace tessera {

Experts::Experts(ParamRegistry& registry, const std::string& name, const std::string& projection,
                 const ExpertsShape& shape)
    : member_{shape.out, shape.in},
      accumulation_(shape.accumulation),
      weights_(add(registry, name, projection, shape)),
      factors_(registry[weights_.front()]) {}

std::vector<ParamId> Experts::add(ParamRegistry& registry, const std::string& name, const std::string& projection,
                                  const ExpertsShape& shape) {
  const std::string dataset = name + "." + projection + ".weight";
  const Shape member{shape.out, shape.in}, all{shape.moe.experts, shape.out, shape.in};
  const Start start = normal_start(shape.deviation);
  const std::int64_t first = shape.moe.first(), held = shape.moe.held();
  if (shape.moe.weights == ExpertWeights::single)
    return {registry.add({dataset,
                          member,
                          static_cast<int>(held),
                          Role::expert,
                          start,
                          {dataset, all, first * member.elements()},
                          {},
                          shape.parts,
                          shape.part})};
  std::vector<ParamId> weights;
  for (std::int64_t e = first; e < first + held; ++e)
    weights.push_back(registry.add({name + "." + std::to_string(e) + "." + projection + ".weight",
                                    member,
                                    1,
                                    Role::expert,
                                    start,
                                    {dataset, all, e * member.elements()},
                                    {},
                                    shape.parts,
                                    shape.part}));
  return weights;
}

template <class F>
void Experts::with_operands(const Call& call, Side side, const F& f) const {
  const Arena::Frame frame(call.arena);
  std::vector<Use> uses;
  std::vector<Operand> held;
  uses.reserve(weights_.size());
  held.reserve(weights_.size());
  for (ParamId weight : weights_) held.push_back(*uses.emplace_back(call.weights.operand(call.stream, weight, side)));
  const std::vector<Operand> operands = factors_.weights(call, held, side);
  f(ExpertOperands{operands.data(), static_cast<int>(operands.size())});
}

void Experts::forward(const Call& call, const Tensor& y, const Factors::Input& x, const Routing& routing,
                      const Saved& saved) const {
  const Arena::Frame frame(call.arena);
  const Operand rows = saved && call.gradients ? factors_.activation(call, x, saved)
                                               : factors_.activation(call, x, Side::rowwise);
  with_operands(call, Side::rowwise,
                [&](const ExpertOperands& w) { expert_forward(call.stream, y, rows, w, routing.offsets); });
  if (!call.rows_end) clear_rows_behind(call.stream, y, routing);
}

void Experts::input_gradient(const Call& call, const Tensor& dx, const Factors::Gradient& dy,
                             const Routing& routing) const {
  with_operands(call, Side::columnwise, [&](const ExpertOperands& w) {
    expert_input_gradient(call.stream, dx, dy.rowwise, w, routing.offsets);
  });
  if (!call.rows_end) clear_rows_behind(call.stream, dx, routing);
}

void Experts::weight_gradient(const Call& call, const Factors::Gradient& dy, const Factors::Input& x,
                              const Routing& routing, const Saved& saved) const {
  const Arena::Frame frame(call.arena);
  const Operand columns =
      saved ? factors_.columns_of(call, x, saved) : factors_.activation(call, x, Side::columnwise);
  const DType type = Factors::like(x).type;
  const Tensor scratch = accumulation_ == Accumulation::unfused ? call.arena.temp(type, member_) : Tensor{};
  std::vector<Gradient> sums;
  sums.reserve(weights_.size());
  for (ParamId weight : weights_) sums.push_back(call.gradients->slot(weight));
  expert_weight_gradient(call.stream, {sums.data(), static_cast<int>(sums.size())}, dy.columnwise, columns,
                         routing.offsets, scratch);
  for (ParamId weight : weights_) call.gradients->written(call.stream, weight);
}

}  // namespace tessera
