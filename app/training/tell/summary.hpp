#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace tessera {

/// Number of calls of one kind of collective in a step, and the bytes that one rank receives by them.
struct CollectiveTotal {
  Collective collective;
  std::int64_t calls = 0, bytes = 0;
};
/// Totals of each kind of collective that a plan calls, those of weights and gradients first.
std::vector<CollectiveTotal> totals_of(std::span<const CollectiveCost> costs);

/// A number of FLOPs for people: "50.4 GFLOP".
std::string flop_text(double flop);

/// Summary of a plan on one screen, a line each: model, work, memory of the rank that needs most, bytes that a rank
/// receives in a step. Then, with reduce.order batch, it says on how many ranks bits are the same. The end is
/// formats_text().
std::string summary_text(const RunPlan& plan);

/// The number formats of a model's matrices, a line for those that are treated alike; empty if none is quantized.
std::string formats_text(const RunConfig& config);

/// One line that says whether the plan fits into `memory` bytes a rank: what is left, or what is missing and which
/// categories are largest.
std::string verdict_text(const RunPlan& plan, std::int64_t memory);

}  // namespace tessera
