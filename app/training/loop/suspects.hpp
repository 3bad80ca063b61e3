#pragma once
#include "core/comm/control.hpp"
#include "core/config/config.hpp"
#include "core/device/device.hpp"
#include "core/step/fingerprint.hpp"

namespace tessera {

/// Guard against silent data corruption: whether a run computes steps that would be skipped once more. Local.
bool confirms_skips(const RunConfig& config, Device& device);

/// What rank 0 says, and all ranks throw, of steps that were computed twice because they would be skipped. Equal bits
/// are the data's fault, and the step is skipped. Other bits are a machine's fault: Error{machine} names the ranks,
/// their hosts and devices, and what differed; nothing of such a step is kept. The result is collective over the world.
Judge judge_of_suspects(const StepPlan& plan, Control& control);

/// What all ranks throw if two computations of a micro-batch in a spot check differ. Error{machine} names the ranks,
/// their hosts and devices, and the first tensor that differed on the way back from the loss. It also names by a third
/// computation which rank is at fault. The result is collective over the world.
SpotJudge judge_of_spot_checks(const StepPlan& plan, Control& control);

}  // namespace tessera
