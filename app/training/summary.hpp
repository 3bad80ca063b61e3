#pragma once
#include <cstdint>
#include <string>

#include "core/plan/plan.hpp"

namespace tessera {

/// A plan on one screen, a line each: model, work, memory of the rank that needs most, what a rank receives in a step.
std::string summary_text(const RunPlan& plan);

/// Whether the plan fits `memory` bytes a rank, with what is left, or is missing and what takes most; one line.
std::string verdict_text(const RunPlan& plan, std::int64_t memory);

}  // namespace tessera
