#include "core/plan/recorder.hpp"

#include "kernels/base/arena.hpp"

namespace tessera {
namespace {
Tensor unreadable(DType type, const Shape& shape) { return {reinterpret_cast<void*>(Arena::alignment), type, shape}; }
}  // namespace

UsageRecorder::UsageRecorder(const ParamRegistry& registry) : registry_(registry), writes_(registry.size()) {}

Use UsageRecorder::operand(Stream&, ParamId param, Side side) {
  accesses_.push_back({param, side, half_});
  const ParamSpec& spec = registry_[param];
  return {*this, param, {unreadable(spec.format.plain, spec.member), spec.members, spec.member_elements()}};
}

/// Backward begins with the first gradient.
Gradient UsageRecorder::slot(ParamId param) {
  half_ = Half::backward;
  const ParamSpec& spec = registry_[param];
  const float beta = writes_[param] == 0 ? 0.0f : 1.0f;
  return {unreadable(DType::f32, spec.member), beta, spec.members, spec.member_elements()};
}

void UsageRecorder::written(Stream&, ParamId param) { ++writes_[param]; }

std::vector<Access> UsageRecorder::take_accesses() {
  half_ = Half::forward;
  return std::exchange(accesses_, {});
}

}  // namespace tessera
