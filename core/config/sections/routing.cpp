#include "core/config/sections/routing.hpp"

#include "core/config/config.hpp"

namespace tessera {

std::span<const Effect> RoutingConfig::effects() {
  static constexpr Effect rows[] = {
      {"routing.every_steps", "model.moe", "on models with model.moe",
       [](const RunConfig& c) { return c.model.moe.has_value(); }},
  };
  return rows;
}

}  // namespace tessera
