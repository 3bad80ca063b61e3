#include "core/config/sections/rope_scaling.hpp"

#include <fmt/format.h>

#include "core/config/config.hpp"

namespace tessera {

void RopeScalingConfig::check(const RunConfig&, std::vector<Finding>& found) const {
  if (low_freq_factor >= high_freq_factor)
    found.push_back({{"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
                     fmt::format("{} is not below high_freq_factor {}", low_freq_factor, high_freq_factor)});
}

std::span<const Effect> RopeScalingConfig::effects() {
  static constexpr Effect rows[] = {
      {"model.rope_scaling", "model.position", "with position rotary",
       [](const RunConfig& c) { return c.model.position == Position::rotary; }},
      {"model.rope_scaling", "model.rope_scaling.factor", "with a factor above 1",
       [](const RunConfig& c) {
         const auto& scaling = c.model.rope_scaling;
         return c.model.position != Position::rotary || !scaling || scaling->factor > 1;
       }},
  };
  return rows;
}

}  // namespace tessera
