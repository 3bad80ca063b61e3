#include "core/optim/schedule.hpp"

#include <cmath>
#include <numbers>

namespace tessera {

double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t s) {
  const double lr = optimizer.lr, min = optimizer.min_lr;
  const auto step = static_cast<double>(s), warmup = static_cast<double>(optimizer.warmup_steps),
             last = static_cast<double>(steps);
  if (s <= optimizer.warmup_steps) return lr * step / warmup;
  const double q = (step - warmup) / (last - warmup);
  switch (optimizer.schedule) {
    case RateSchedule::cosine:
      return min + (lr - min) * (1 + std::cos(std::numbers::pi * q)) / 2;
    case RateSchedule::linear:
      return lr + (min - lr) * q;
    case RateSchedule::constant:
      return lr;
    case RateSchedule::wsd: {
      const auto decay = static_cast<double>(optimizer.decay_steps), begin = last - decay;
      return step <= begin ? lr : lr + (min - lr) * (step - begin) / decay;
    }
  }
  return lr;
}

}  // namespace tessera
