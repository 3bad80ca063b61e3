#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/device/device.hpp"
#include "kernels/gemm/native.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera {

/// What a start found out about a kind of native product.
struct CheckedKind {
  double apart = 0;  ///< largest distance from the decoded product's results, in parts of what their sums allow
  std::string fault = {};  ///< why its products are decoded from now on; empty: they are right
};
using CheckedKinds = std::map<gemm::Kind, CheckedKind>;

/// Checks each kind of native product among `routes` that the project has not proven on this machine
/// (gemm::Standing::claimed). One small product is computed by the native library and of the decoded factors. The two
/// are compared in each type of result, with each epilogue and beta that the run has. Scales differ in all directions,
/// and no side is whole tiles. Sums differ by order and by the digits that tensor cores keep: by at most 2^-11 of the
/// sum of the terms' magnitudes. Results are then rounded. Waits. Local.
CheckedKinds check_units(Device& device, const gemm::Routes& routes);

}  // namespace tessera
