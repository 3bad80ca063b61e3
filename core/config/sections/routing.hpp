#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `routing` of a deck: what a run records of its routers' choices, and whose it follows.
struct RoutingConfig {
  std::int64_t every_steps = 0;
  std::string record, replay;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change,
          "Steps between rows of routing.jsonl, which say where each layer's router sent the step's tokens; 0: none");
    v.key("record", self.record, Text::line_or_empty, may_change,
          "File to which each step's choices of experts are written, every one of them; a resumed run goes on in it; "
          "empty: none. Same bits");
    v.key("replay", self.replay, Text::line_or_empty, told,
          "File that routing.record has written with the same data, whose choices training takes instead of its "
          "routers' own; evaluations and samples do not; empty: none");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();

  bool operator==(const RoutingConfig&) const = default;
};

}  // namespace tessera
