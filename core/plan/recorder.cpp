#include "core/plan/recorder.hpp"

#include "kernels/base/arena.hpp"

namespace tessera {
namespace {
Tensor unreadable(DType type, const Shape& shape) { return {reinterpret_cast<void*>(Arena::alignment), type, shape}; }
}  // namespace

UsageRecorder::UsageRecorder(const ParamRegistry& registry)
    : registry_(registry), seen_(static_cast<std::size_t>(registry.size()), false) {
  usage_.writes.assign(static_cast<std::size_t>(registry.size()), 0);
}

Operand UsageRecorder::operand(Stream&, ParamId param, Side) {
  const auto p = static_cast<std::size_t>(param.value);
  if (!seen_[p]) usage_.order.push_back(param);
  seen_[p] = true;
  const ParamSpec& spec = registry_[param];
  return {unreadable(spec.format.plain, spec.member), spec.members, spec.member_elements()};
}

Gradient UsageRecorder::slot(ParamId param) {
  const ParamSpec& spec = registry_[param];
  const float beta = usage_.writes[static_cast<std::size_t>(param.value)] == 0 ? 0.0f : 1.0f;
  return {unreadable(DType::f32, spec.member), beta, spec.members, spec.member_elements()};
}

void UsageRecorder::written(Stream&, ParamId param) { ++usage_.writes[static_cast<std::size_t>(param.value)]; }

}  // namespace tessera
