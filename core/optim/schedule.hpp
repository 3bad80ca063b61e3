#pragma once
#include <cstdint>

#include "core/config/config.hpp"

namespace tessera {

/// Learning rate of step s (from 1) of `steps`, in double, rounded once by whoever stores it: lr s/warmup up to warmup;
/// then with q = (s - warmup)/(steps - warmup) cosine min + (lr - min)(1 + cos(pi q))/2, linear lr + (min - lr) q,
/// constant lr, or wsd: lr, and a line down to min over the last decay_steps.
double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t s);

}  // namespace tessera
