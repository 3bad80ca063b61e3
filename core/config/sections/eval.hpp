#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `eval` of a deck.
struct EvalConfig {
  std::int64_t every_steps = 0;
  std::int64_t batches = 8;
  std::string follow = {};
  Derived<EvaluatedWeights> weights = {};

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change, "Steps between evaluations; 0: none");
    v.key("batches", self.batches, from_to(1, 1 << 24), told, "Global batches of one evaluation of a set, at most");
    v.key("follow", self.follow, Text::line_or_empty, told,
          "Evaluation set whose loss is the run's eval_loss, which keep_best and stop_after follow; empty: the first");
    v.derived("weights", self.weights, OneOf(), told, "ema with optimizer.ema, else trained",
              "Weights that are evaluated while the run trains. trained: those of the step; ema: their averages");
  }

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const EvalConfig&) const = default;
};

/// Which of the evaluation sets is the followed one, in the order of evaluation_names(). Config must be checked.
std::size_t followed_set(const RunConfig& config);

/// Whether a run is evaluated before it ends; and as the end of "has an effect only ...".
bool evaluates_on_the_way(const RunConfig& config);
constexpr const char* while_evaluating = "with evaluations, which eval.every_steps above 0 makes";

}  // namespace tessera
