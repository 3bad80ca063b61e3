#pragma once
#include <optional>
#include <string>

#include "core/plan/plan.hpp"

namespace tessera {

/// What `tessera plan` and the head of a training log print: memory by category, collectives, groups and owners.
std::string plan_text(const RunPlan& plan, const std::optional<GranularityPeaks>& peaks = {});
/// The same for programs: {ranks, memory: {category: bytes}, collectives: [{group, op, bytes, count}], groups, ...}.
std::string plan_json(const RunPlan& plan, const std::optional<GranularityPeaks>& peaks = {});

}  // namespace tessera
