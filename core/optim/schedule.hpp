#pragma once
#include <cstdint>

#include "core/config/sections/optimizer.hpp"

namespace tessera {

/// Learning rate of step s (from 1) of `steps`, in double; the caller rounds it once. Up to step `warmup`: lr s/warmup.
/// Afterwards, with q = (s - warmup)/(steps - warmup): cosine min + (lr - min)(1 + cos(pi q))/2; linear lr + (min - lr)
/// q; constant lr. wsd lr, falling linearly to min over the last decay_steps.
double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t s);

}  // namespace tessera
