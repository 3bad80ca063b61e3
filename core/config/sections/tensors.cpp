#include "core/config/sections/tensors.hpp"

#include <algorithm>

#include "core/config/config.hpp"

namespace tessera {

bool TensorsConfig::takes(std::int64_t of) const { return std::ranges::find(step, of) != step.end(); }

void TensorsConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  if (!step.empty() && names.empty())
    found.push_back({{"debug.tensors.step", "debug.tensors.names"},
                     "needs debug.tensors.names: which tensors of these steps are to be written"});
  if (!step.empty() && config.parallel.expert > 1)
    found.push_back({{"debug.tensors.step", "parallel.expert"},
                     "the rows of an expert come from many ranks with parallel.expert above 1, and their order is not "
                     "kept: use parallel.expert 1"});
}

std::span<const Effect> TensorsConfig::effects() {
  static constexpr Effect rows[] = {
      {"debug.tensors.names", "debug.tensors.step", "with a step",
       [](const RunConfig& c) { return !c.debug.tensors.step.empty(); }},
      {"debug.tensors.step", "run.steps", "on steps that the run makes",
       [](const RunConfig& c) {
         const auto& step = c.debug.tensors.step;
         return step.empty() || std::ranges::min(step) <= c.run.steps;
       }},
  };
  return rows;
}

}  // namespace tessera
