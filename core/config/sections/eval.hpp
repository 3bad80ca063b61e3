#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `eval` of a deck.
struct EvalConfig {
  std::int64_t every_steps = 0;
  std::int64_t batches = 8;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change, "Steps between evaluations; 0: none");
    v.key("batches", self.batches, from_to(1, 1 << 24), told, "Global batches of one evaluation, at most");
  }

  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const OtherName> other_names();

  bool operator==(const EvalConfig&) const = default;
};

/// Whether a run is evaluated before it ends; and as the end of "has an effect only ...".
bool evaluates_on_the_way(const RunConfig& config);
constexpr const char* while_evaluating = "with evaluations, which eval.every_steps above 0 makes";

}  // namespace tessera
