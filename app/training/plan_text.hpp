#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/plan/plan.hpp"

namespace tessera {

/// Elements of all parameters.
std::int64_t parameters(const RunPlan& plan);

/// What `tessera plan --verbose` prints, and a run keeps in plan.txt: memory by category, collectives, groups and
/// owners, each on a line.
std::string plan_text(const RunPlan& plan);
/// The same for programs: {ranks, memory: {category: bytes}, collectives: [{group, op, bytes, count}], groups, ...}.
std::string plan_json(const RunPlan& plan, const std::optional<GranularityPeaks>& peaks = {});

}  // namespace tessera
