#pragma once
#include <vector>

#include "core/layout/param.hpp"

namespace tessera {

/// How a model uses its parameters in one micro-batch, seen in a dry pass: what prefetch and completion follow.
struct Usage {
  std::vector<ParamId> order;  ///< parameters in order of first use
  std::vector<int> writes;     ///< contributions to each parameter's gradient
};

}  // namespace tessera
