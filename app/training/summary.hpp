#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace tessera {

/// Calls of one kind of collective in a step, and the bytes that one rank receives by them.
struct CollectiveTotal {
  Collective collective;
  std::int64_t calls = 0, bytes = 0;
};
/// The kinds of collectives that the plan calls, those of weights and gradients first.
std::vector<CollectiveTotal> totals_of(std::span<const CollectiveCost> costs);

/// "50.4 GFLOP".
std::string flop_text(double flop);

/// A plan on one screen, a line each: model, work, memory of the rank that needs most, what a rank receives in a step.
std::string summary_text(const RunPlan& plan);

/// Whether the plan fits `memory` bytes a rank, with what is left, or is missing and what takes most; one line.
std::string verdict_text(const RunPlan& plan, std::int64_t memory);

}  // namespace tessera
