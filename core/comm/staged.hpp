#pragma once
#include <memory>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"

namespace tessera {

/// Stages every buffer through page-locked host memory, for an `inner` communicator that takes host memory only.
/// submit() blocks until this rank's data have been copied to the host: computation overlaps with the transport, but
/// not with that copy.
std::unique_ptr<Communicator> staged(Device& device, std::unique_ptr<Communicator> inner);

}  // namespace tessera
