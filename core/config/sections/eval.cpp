#include "core/config/sections/eval.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/config/config.hpp"

namespace tessera {

bool evaluates_on_the_way(const RunConfig& config) { return config.data.evaluates() && config.eval.every_steps > 0; }

std::size_t followed_set(const RunConfig& config) {
  const std::vector<std::string> names = config.data.evaluation_names();
  const auto found = std::ranges::find(names, config.eval.follow);
  return found == names.end() ? 0 : static_cast<std::size_t>(found - names.begin());
}

void EvalConfig::derive(const RunConfig& config) {
  weights.fill(config.optimizer.ema > 0 ? EvaluatedWeights::ema : EvaluatedWeights::trained);
}

void EvalConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  const std::vector<std::string> names = config.data.evaluation_names();
  if (!follow.empty() && !config.data.eval_sets.empty() && std::ranges::find(names, follow) == names.end())
    found.push_back({{"eval.follow", "data.eval_sets"},
                     fmt::format("{} is no evaluation set: there {} {}", follow, names.size() > 1 ? "are" : "is",
                                 fmt::join(names, ", "))});
  if (weights == EvaluatedWeights::ema && config.optimizer.ema == 0)
    found.push_back({{"eval.weights", "optimizer.ema"},
                     "is ema, and no averages are kept: set optimizer.ema, as 0.999, or leave weights out"});
}

std::span<const Effect> EvalConfig::effects() {
  static constexpr Effect rows[] = {
      {"eval.follow", "data.eval_sets", "with data.eval_sets",
       [](const RunConfig& c) { return !c.data.eval_sets.empty(); }},
  };
  return rows;
}

void EvalConfig::advise(const RunConfig& config, std::vector<Finding>& found) const {
  if (every_steps > 0 && !config.data.evaluates())
    found.push_back({{"eval.every_steps", "data.eval_fraction"},
                     "no evaluation: data.eval_fraction 0 keeps no windows for it, and there are no data.eval_files"});
}

std::span<const OtherName> EvalConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"eval_steps eval_interval val_every eval_every validation_interval val_interval val_loss_every eval_freq "
       "val_check_interval validate_every validation.freq eval.interval eval.freq", "eval.every_steps", ""},
      {"eval_iters val_max_steps eval_batches val_batches limit_val_batches val_iters validation.steps",
       "eval.batches", ""},
      {"validation", "eval", ""},
  };
  return rows;
}

}  // namespace tessera
