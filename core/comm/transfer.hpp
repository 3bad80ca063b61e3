#pragma once
#include "core/comm/communicator.hpp"
#include "core/device/region.hpp"
#include "core/layout/ranks.hpp"

namespace tessera {

/// The operation as a profile records it, on the rank at `place` of its process group.
inline Transfer transfer_of(const Operation& operation, const RankIn& place) {
  return {name_of(operation.collective), operation.label, operation.bytes(place.rank, place.size)};
}

}  // namespace tessera
