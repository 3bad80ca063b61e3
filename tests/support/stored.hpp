#pragma once
#include "core/params/param_sync.hpp"

namespace tessera::test {

/// The stored array of a bucket's weights in a format with one array.
inline Tensor stored(const ParamSync& sync, BucketId bucket) {
  Tensor found;
  sync.visit_planes([&](const Plane& plane) {
    if (plane.bucket == bucket) found = plane.values;
  });
  require(static_cast<bool>(found), "stored", "takes a bucket of the layout");
  return found;
}

}  // namespace tessera::test
