#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/config/section.hpp"
#include "core/config/sections/muon.hpp"

namespace tessera {

/// Section `optimizer` of a deck.
struct OptimizerConfig {
  MatrixRule matrices = MatrixRule::adamw;
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  Moments moments = Moments::fp32;
  double clip = 1;
  RateSchedule schedule = RateSchedule::cosine;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  double min_lr = 0;
  std::int64_t max_skips = 10;
  double skip_spikes = 0;
  double ema = 0;
  MuonConfig muon;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("matrices", self.matrices, OneOf(), fixed,
          "Rule of the blocks' matrices and experts; other parameters have AdamW's");
    v.key("lr", self.lr, from_to(0, 1e3), told, "Learning rate after warm-up");
    v.key("beta1", self.beta1, from_below(0, 1), fixed, "Decay of the first moment");
    v.key("beta2", self.beta2, from_below(0, 1), fixed, "Decay of the second moment");
    v.key("eps", self.eps, from_to(1e-30, 1), fixed, "Added to the root of the second moment");
    v.key("weight_decay", self.weight_decay, from_to(0, 1e3), told, "Decoupled decay of matrices and embeddings");
    v.key("moments", self.moments, OneOf(), fixed,
          "Type in which AdamW's moments and Muon's momentum are kept: rounded once after use");
    v.key("clip", self.clip, from_to(0, 1e30), told, "Largest norm of all parameters' gradient; 0: no limit");
    v.key("schedule", self.schedule, OneOf(), on_request, "Learning rate after warm-up; wsd: constant, then linear");
    v.key("warmup_steps", self.warmup_steps, from_to(0, 1e12), on_request,
          "Steps in which the rate rises from 0 to lr");
    v.key("decay_steps", self.decay_steps, from_to(0, 1e12), on_request,
          "Last steps of schedule wsd, from lr to min_lr");
    v.key("min_lr", self.min_lr, from_to(0, 1e3), told, "Learning rate at the last step");
    v.key("max_skips", self.max_skips, from_to(1, 1e12), told, "Steps in a row, not finite, that end the run");
    v.key("skip_spikes", self.skip_spikes, from_to(0, 1e3), told,
          "Skip a step whose gradient norm lies more than so many standard deviations above the mean of 128 steps, "
          "those before the last one; 0: none. Where a checkpoint lacks these norms, they are gathered first");
    v.key("ema", self.ema, from_below(0, 1), fixed,
          "Decay of moving averages of all weights, in fp32, which are saved beside them: after each step average = "
          "ema average + (1 - ema) weight, from the first weights on; 0: none are kept");
    v.section("muon", self.muon, "Muon, where matrices says so: momentum, made orthogonal matrix by matrix");
  }

  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const OptimizerConfig&) const = default;
};

}  // namespace tessera
