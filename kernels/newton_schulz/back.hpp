#pragma once
#include <cstdint>

#include "kernels/newton_schulz/newton_schulz.hpp"

/// The functions that a back end implements for newton_schulz().
namespace tessera::newton_schulz_back {

/// Leading dimension in scratch of a matrix with `columns` columns.
std::int64_t row_length(std::int64_t columns);
/// Largest scratch, in bytes, of a batch of several matrices.
std::int64_t batch_bytes();
/// Rows and columns of a tile of A, B and X, as `first_upper_tile` and `first_tile` count them.
inline constexpr std::int64_t tile = 128;

/// One step of a batch's matrices: x[to] from x[1 - to], all in `scratch`.
void step(Stream& stream, const NewtonSchulzTable& table, const NewtonSchulzTable::Batch& batch,
          const NewtonSchulzStep& coefficients, bf16* scratch, int to);

}  // namespace tessera::newton_schulz_back
