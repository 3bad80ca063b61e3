#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `debug.tensors` of a deck.
struct TensorsConfig {
  std::vector<std::int64_t> step;
  std::vector<std::string> names;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("step", self.step, from_to(1, 1e12), may_change,
          "Steps whose tensors are written, each to a file tensors_STEP.h5 of the run directory. Same bits");
    v.key("names", self.names, Text::line_or_empty, may_change,
          "Patterns of their names, MATRIX/WHAT, in which * stands for any text: */gradient, layers.0.*; "
          "docs/tensors.md has all");
  }

  bool takes(std::int64_t step) const;

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();

  bool operator==(const TensorsConfig&) const = default;
};

}  // namespace tessera
