#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace tessera::reference {

/// y [M,C] = tokens[id[m]] + positions[m mod T]; positions may be empty.
std::vector<double> embedding_forward(std::span<const std::int32_t> ids, std::span<const double> tokens,
                                      std::span<const double> positions, std::size_t columns);

/// First dtokens = beta dtokens. Then every row of dy is added to the row of its token, in ascending position: bit for
/// bit what the kernel does. T is double, float or bf16.
template <class T>
void embedding_token_gradient(std::span<Accumulator<T>> dtokens, float beta, std::span<const std::int32_t> ids,
                              std::span<const T> dy, std::size_t columns);
/// dpositions [T,C] = beta dpositions; then row m of dy is added to row m mod T.
template <class T>
void embedding_position_gradient(std::span<Accumulator<T>> dpositions, float beta, std::span<const T> dy);

}  // namespace tessera::reference
