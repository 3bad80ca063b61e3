#include "core/params/weights.hpp"

#include "core/params/param_sync.hpp"

namespace tessera {

Use Weights::operand(Stream& stream, ParamId param, Side side) {
  return {*this, param, sync_.operand(stream, param, side)};
}
void Weights::ended(ParamId param) noexcept { --sync_.group_of(param).uses; }

WeightState Weights::state(GroupId group) const { return sync_.weights_of(sync_.groups_[group]); }

void Weights::visit_planes(const std::function<void(const Plane&)>& visit) const {
  for (const ParamGroup& group : sync_.groups_) sync_.visit_planes(group, {}, visit);
}

void Weights::observe(Observer observer) { sync_.observer_ = std::move(observer); }
bool Weights::observed() const { return static_cast<bool>(sync_.observer_); }
std::int64_t Weights::overlapped() const { return sync_.overlapped_.gathers; }

}  // namespace tessera
