#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/plan/plan.hpp"

namespace tessera {

/// Number of elements of all parameters.
std::int64_t parameters(const RunPlan& plan);

/// Text of a plan, for `tessera plan --verbose` and plan.txt: memory by category, collectives, groups and owners, a
/// line each.
std::string plan_text(const RunPlan& plan);
/// The same as JSON: {ranks, memory: {category: bytes}, collectives: [{group, op, bytes, count}], groups, ...}.
std::string plan_json(const RunPlan& plan, const std::optional<GranularityPeaks>& peaks = {}, int hosts = 1);

}  // namespace tessera
