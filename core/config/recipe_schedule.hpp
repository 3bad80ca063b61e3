#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/config/config.hpp"

/// precision.schedule cuts a run into segments, each of one recipe. The first begins with step 1.
namespace tessera {

/// How many segments a run has.
std::size_t segments(const RunConfig& config);

/// Text of a schedule's changes: ", from step 8201 on nvfp4"; empty without.
std::string schedule_text(const PrecisionConfig& precision);

/// The segment that makes a step. What follows a step, such as its evaluation and its checkpoint, belongs to it too;
/// what comes before the first step (0) to the first segment.
std::size_t segment_of(const RunConfig& config, std::int64_t step);

/// The last step of a segment.
std::int64_t last_step_of(const RunConfig& config, std::size_t segment);

/// The config of one segment, which has no schedule. A key that is as the first recipe derives it is derived anew for
/// the segment's.
RunConfig config_of(const RunConfig& config, std::size_t segment);

/// config_of() the segment of a step.
RunConfig config_at(const RunConfig& config, std::int64_t step);

/// What `find` finds in the configs of segments but the first, and not in the first's; keys as the deck writes them.
std::vector<Finding> found_later(const RunConfig& config,
                                 const std::function<std::vector<Finding>(const RunConfig&)>& find);

/// Contradictions of a schedule, and of its segments but the first.
void check_schedule(const RunConfig& config, std::vector<Finding>& found);

}  // namespace tessera
