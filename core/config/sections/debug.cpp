#include "core/config/sections/debug.hpp"

#include "core/config/config.hpp"

namespace tessera {

void DebugConfig::check(const RunConfig&, std::vector<Finding>& found) const {
  if (!profile.empty() && profile == trace)
    found.push_back({{"debug.profile", "debug.trace"}, "is the file of debug.trace too: name another"});
}

std::span<const Effect> DebugConfig::effects() {
  static constexpr Effect rows[] = {
      {"debug.profile", "run.steps", "in runs of at least one step",
       [](const RunConfig& c) { return c.run.steps > 0; }},
  };
  return rows;
}

std::span<const OtherName> DebugConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"profiling profiler enable_profiling profile_freq", "debug.profile", ""},
  };
  return rows;
}

}  // namespace tessera
