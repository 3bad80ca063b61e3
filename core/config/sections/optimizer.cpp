#include "core/config/sections/optimizer.hpp"

#include <utility>

#include <fmt/format.h>

#include "core/config/config.hpp"

namespace tessera {

void OptimizerConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  if (min_lr > lr)
    found.push_back({{"optimizer.min_lr", "optimizer.lr"}, fmt::format("{} is above lr {}", min_lr, lr)});
  const std::pair<const char*, double> decays[] = {{"optimizer.beta1", beta1},
                                                   {"optimizer.beta2", beta2},
                                                   {"optimizer.ema", ema},
                                                   {"optimizer.muon.momentum", muon.momentum}};
  for (const auto& [key, decay] : decays)
    if (decay < 1 && static_cast<float>(decay) == 1.0f)
      found.push_back({{key},
                       fmt::format("{} is 1 in fp32, in which it is used, so that nothing would be averaged: use "
                                   "0.9999999 at most",
                                   decay)});
  if (schedule != RateSchedule::wsd) return;
  if (decay_steps == 0)
    found.push_back({{"optimizer.decay_steps", "optimizer.schedule"}, "missing: schedule wsd needs it"});
  else if (warmup_steps + decay_steps > config.run.steps)
    found.push_back({{"optimizer.decay_steps", "optimizer.warmup_steps", "optimizer.schedule", "run.steps"},
                     fmt::format("warm-up {} and decay {} are longer than the run of {} steps", warmup_steps,
                                 decay_steps, config.run.steps)});
}

void OptimizerConfig::advise(const RunConfig& config, std::vector<Finding>& found) const {
  if (warmup_steps >= config.run.steps)
    found.push_back({{"optimizer.warmup_steps", "run.steps"},
                     fmt::format("the run of {} steps ends within warm-up", config.run.steps)});
}

std::span<const Effect> OptimizerConfig::effects() {
  static constexpr Effect rows[] = {
      {"optimizer.decay_steps", "optimizer.schedule", "with schedule wsd",
       [](const RunConfig& c) { return c.optimizer.schedule == RateSchedule::wsd; }},
      {"optimizer.min_lr", "optimizer.schedule", "with a schedule other than constant",
       [](const RunConfig& c) { return c.optimizer.schedule != RateSchedule::constant; }},
      {"optimizer.skip_spikes", "run.steps", "from step 130 on",
       [](const RunConfig& c) { return c.run.steps >= 130; }},
  };
  return rows;
}

std::span<const OtherName> OptimizerConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"learning_rate max_lr base_lr peak_lr", "optimizer.lr", ""},
      {"min_learning_rate lr_min final_lr end_lr", "optimizer.min_lr", ""},
      {"min_lr_factor min_lr_ratio learning_rate_decay_frac", "optimizer.min_lr", "a rate, not a share of lr"},
      {"warmup_iters lr_warmup_iters warmup_iterations lr_warmup_steps num_warmup_steps warmup",
       "optimizer.warmup_steps", ""},
      {"warmup_ratio lr_warmup_fraction warmup_fraction", "optimizer.warmup_steps", "steps, not a share of them"},
      {"lr_decay_iters lr_decay_steps decay_iters cooldown_steps lr_wsd_decay_iters warmdown_iters",
       "optimizer.decay_steps", "with schedule wsd; the other schedules end at run.steps"},
      {"decay_ratio", "optimizer.decay_steps", "steps, not a share of them"},
      {"lr_scheduler lr_scheduler_type lr_decay_style decay_type scheduler lr_schedule lr_scheduler.name",
       "optimizer.schedule", ""},
      {"grad_clip clip_grad max_grad_norm max_norm gradient_clipping gradient_clip_val clip_grad_norm",
       "optimizer.clip", ""},
      {"adam_beta1", "optimizer.beta1", ""},
      {"adam_beta2", "optimizer.beta2", ""},
      {"betas", "optimizer.beta1", "and optimizer.beta2, each a number"},
      {"adam_eps adam_epsilon", "optimizer.eps", ""},
      {"wd", "optimizer.weight_decay", ""},
      {"optim optimizer_type optimizer.name optimizer.type", "optimizer.matrices", "adamw | muon"},
      {"ema_decay ema_beta ema_rate ema_momentum polyak model_ema_decay", "optimizer.ema", ""},
      {"use_ema model_ema", "optimizer.ema", "a decay, as 0.999"},
      {"lora peft adapter adapters freeze frozen freeze_layers", "",
       "all weights are trained: there are no adapters and no frozen layers"},
  };
  return rows;
}

}  // namespace tessera
