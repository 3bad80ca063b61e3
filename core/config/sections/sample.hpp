#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `sample` of a deck.
struct SampleConfig {
  std::int64_t tokens = 0;
  std::int64_t every_steps = 0;
  std::string prompt = "\n";

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("tokens", self.tokens, from_to(0, 1 << 20), may_change, "Tokens of a sample, generated at the end; 0: none");
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change, "Steps between samples; 0: at the end alone");
    v.key("prompt", self.prompt, Text::any, may_change, "Text that the generated tokens continue");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const OtherName> other_names();

  bool operator==(const SampleConfig&) const = default;
};

}  // namespace tessera
