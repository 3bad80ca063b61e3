#pragma once
#include <cmath>

#include "kernels/base/platform.hpp"
#include "kernels/base/prefix.hpp"
#include "kernels/optim/adamw.hpp"

/// Parts that back ends share, and a back end's faster version of the portable kernel. It returns false, having done
/// nothing, if there is none.
namespace tessera::optim {

/// All arguments of one adamw_step().
struct AdamWStep {
  AdamWCoefficients coefficients;
  AdamWTable::View table;
  AdamWClock* clock;
  const ClipResult* clip;
  const float* rate;

  /// Number of blocks of a launch: one per chunk, at least one, so that the clock advances on a rank with an empty
  /// slice.
  TESSERA_FN std::int64_t blocks() const { return table.chunks > 0 ? table.chunks : 1; }
  /// The clock of this step. Every block computes it; the last block to finish stores it, when no block reads the old
  /// one.
  TESSERA_FN AdamWClock now() const {
    return {clock->t + 1, clock->beta1_power * coefficients.beta1, clock->beta2_power * coefficients.beta2};
  }
  /// The run to which a chunk belongs.
  TESSERA_FN const AdamWTable::Row& row_of(std::int64_t chunk) const {
    return row_of_piece(table.rows, 0, table.count, &AdamWTable::Row::first_chunk, chunk);
  }
};

/// The factors of a step in fp32.
struct AdamWFactors {
  float coefficient, rate, b1, b2, c1, c2, eps;

  TESSERA_FN explicit AdamWFactors(const AdamWStep& step)
      : coefficient(step.clip->coefficient),
        rate(*step.rate),
        b1(static_cast<float>(step.coefficients.beta1)),
        b2(static_cast<float>(step.coefficients.beta2)),
        c1(static_cast<float>(1.0 - step.now().beta1_power)),
        c2(static_cast<float>(1.0 - step.now().beta2_power)),
        eps(static_cast<float>(step.coefficients.eps)) {}

  /// Updates one element. M is the type in which the moments are kept.
  template <class M>
  TESSERA_FN void update(float& p, M& m, M& v, float gradient, float weight_decay) const {
    const float clipped = coefficient * gradient;
    const float mean = b1 * static_cast<float>(m) + (1.0f - b1) * clipped;
    const float square = b2 * static_cast<float>(v) + (1.0f - b2) * (clipped * clipped);
    p -= rate * ((mean / c1) / (::sqrtf(square / c2) + eps) + weight_decay * p);
    m = static_cast<M>(mean);
    v = static_cast<M>(square);
  }
};

/// Faster adamw_step() with the same bits. Arguments are checked; the stream is not dry.
bool adamw_step(Stream& stream, const AdamWStep& step);

}  // namespace tessera::optim
