#pragma once
#include <cstdint>
#include <span>

#include "core/config/section.hpp"

namespace tessera {

/// Section `routing` of a deck: what a run records of its routers' choices.
struct RoutingConfig {
  std::int64_t every_steps = 0;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change,
          "Steps between rows of routing.jsonl, which say where each layer's router sent the step's tokens; 0: none");
  }

  static std::span<const Effect> effects();

  bool operator==(const RoutingConfig&) const = default;
};

}  // namespace tessera
