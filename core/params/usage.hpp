#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/param.hpp"
#include "kernels/formats/side.hpp"

namespace tessera {

/// The half of a micro-batch in which a weight is used. Recomputation of a forward belongs to backward.
enum class Half : std::uint8_t { forward, backward };
constexpr const char* name_of(Half half) { return half == Half::forward ? "forward" : "backward"; }

/// One call of WeightSource::operand().
struct Access {
  ParamId param;
  Side side = Side::rowwise;
  Half half = Half::forward;
  bool operator==(const Access&) const = default;
};

/// One contribution to a gradient.
struct Contribution {
  ParamId param;
  int accesses = 0;  ///< number of accesses of its micro-batch that come before it
  bool operator==(const Contribution&) const = default;
};

/// A model's use of its parameters, recorded by a dry pass. The schedule of all-gathers and reductions follows from it.
struct Usage {
  std::vector<Access> training;             ///< of one micro-batch, in order
  std::vector<Access> evaluation;           ///< of one micro-batch, in order
  std::vector<Contribution> contributions;  ///< to gradients, in one micro-batch, in order
};

}  // namespace tessera
