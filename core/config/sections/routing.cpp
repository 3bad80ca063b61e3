#include "core/config/sections/routing.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/config/config.hpp"

namespace tessera {

void RoutingConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  const auto same = [](const std::string& a, const std::string& b) { return !a.empty() && a == b; };
  if (same(record, replay))
    found.push_back({{"routing.record", "routing.replay"}, "is the file of routing.replay too: name another"});
  for (const auto& [key, file] : {std::pair("debug.trace", config.debug.trace),
                                  std::pair("debug.profile", config.debug.profile)})
    if (same(record, file))
      found.push_back({{"routing.record", key}, fmt::format("is the file of {} too: name another", key)});
  constexpr std::int64_t most_experts = 65535;  // that two bytes tell from each other and from none
  if (!record.empty() && config.model.moe && config.model.moe->experts > most_experts)
    found.push_back({{"routing.record", "model.moe.experts"},
                     fmt::format("records choices of at most {} experts", most_experts)});
}

std::span<const Effect> RoutingConfig::effects() {
  static constexpr auto mixes = [](const RunConfig& c) { return c.model.moe.has_value(); };
  static constexpr Effect rows[] = {
      {"routing.every_steps", "model.moe", "on models with model.moe", mixes},
      {"routing.record", "model.moe", "on models with model.moe", mixes},
      {"routing.replay", "model.moe", "on models with model.moe", mixes},
  };
  return rows;
}

}  // namespace tessera
