#include "core/config/sections/eval.hpp"

#include "core/config/config.hpp"

namespace tessera {

bool evaluates_on_the_way(const RunConfig& config) { return config.data.evaluates() && config.eval.every_steps > 0; }

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
