#include "app/training/loop/step_faults.hpp"

#include <limits>

#include "io/files/fault.hpp"

namespace tessera {

void plan_fault(Engine& engine, std::int64_t step) {
  const std::optional<fault::StepFault> fault = fault::in_step(step);
  if (!fault) return;
  switch (*fault) {
    case fault::StepFault::nan: return engine.spoil_next(std::numeric_limits<float>::quiet_NaN());
    case fault::StepFault::inf: return engine.spoil_next(std::numeric_limits<float>::infinity());
    case fault::StepFault::redo: return engine.redo_next();
    case fault::StepFault::activation: return engine.fail_once(Engine::Fault::activation);
    case fault::StepFault::gradient: return engine.fail_once(Engine::Fault::gradient);
    case fault::StepFault::shard: return engine.fail_once(Engine::Fault::shard);
    case fault::StepFault::number: return engine.fail_once(Engine::Fault::number);
    case fault::StepFault::bit: return engine.fail_once(Engine::Fault::bit);
    case fault::StepFault::bit_for_another: return engine.fail_once(Engine::Fault::bit_for_another);
    case fault::StepFault::bit_always: return engine.fail_once(Engine::Fault::bit_always);
  }
}

}  // namespace tessera
