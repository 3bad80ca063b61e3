#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/newton_schulz/newton_schulz.hpp"

namespace tessera::reference {

/// The result of newton_schulz() for one matrix [rows, columns]. Sums are made in double and rounded to fp32; bits may
/// differ from a kernel's where another order of sums rounds to another bf16.
std::vector<float> newton_schulz(std::span<const float> matrix, std::int64_t rows, std::int64_t columns,
                                 std::span<const NewtonSchulzStep> steps);

}  // namespace tessera::reference
