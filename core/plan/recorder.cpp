#include "core/plan/recorder.hpp"

#include "core/params/planes.hpp"
#include "kernels/base/arena.hpp"

namespace tessera {
namespace {
Tensor unreadable(DType type, const Shape& shape) { return {reinterpret_cast<void*>(Arena::alignment), type, shape}; }
}  // namespace

UsageRecorder::UsageRecorder(const ParamRegistry& registry, const WeightRules& rules)
    : registry_(registry), rules_(rules), written_(registry.size()) {}

Use UsageRecorder::operand(Stream&, ParamId param, Side side) {
  accesses_.push_back({param, side, half_});
  const ParamSpec& spec = registry_[param];
  const Tensor values = unreadable(spec.format.plain, spec.member);
  if (travel_of(spec.format, rules_) == Travel::plain)
    return {*this, param, {values, spec.members, spec.member_elements()}};
  return {*this, param,
          coded_operand(*spec.format.codes, spec, side, spec.member_elements(), values.data, values.data, values.data)};
}

/// The first gradient marks the beginning of backward.
Gradient UsageRecorder::slot(ParamId param) {
  half_ = Half::backward;
  const ParamSpec& spec = registry_[param];
  const float beta = written_[param] == 0 ? 0.0f : 1.0f;
  return {unreadable(DType::f32, spec.member), beta, spec.members, spec.member_elements()};
}

void UsageRecorder::written(Stream&, ParamId param) {
  contributions_.push_back({param, static_cast<int>(accesses_.size())});
  ++written_[param];
}

std::vector<Access> UsageRecorder::take_accesses() {
  half_ = Half::forward;
  return std::exchange(accesses_, {});
}

}  // namespace tessera
