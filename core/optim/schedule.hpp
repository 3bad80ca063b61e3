#pragma once
#include <cstdint>

#include "core/config/config.hpp"

namespace tessera {

/// Learning rate of step s (from 1) of `steps`, in double, rounded once by whoever stores it: lr s/warmup up to warmup;
/// then cosine, linear, constant, or constant with a linear end (wsd), down to min_lr. Source: model.md's formulas.
double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t s);

}  // namespace tessera
