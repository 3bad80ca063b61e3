#pragma once
#include <cstdint>

#include "core/step/step_memory.hpp"

namespace tessera {

/// The hash chain of a run: one number for all that its steps have computed, equal on any number of ranks with
/// `reduce.order: batch`. It is continued with the sums of every micro-batch, the gradient norm and the decision to
/// skip, to the bit. So runs with equal chains have made the same steps. 0 before the first step. Pure.
std::uint64_t continued(std::uint64_t chain, std::int64_t step, const StepReport& report);

}  // namespace tessera
