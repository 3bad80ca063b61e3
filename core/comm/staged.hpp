#pragma once
#include <memory>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"

namespace tessera {

/// Stages every buffer through page-locked memory, in and out, for an `inner` that reads host memory only. submit()
/// blocks until this rank's data are there: computation hides the transport, but not that copy.
std::unique_ptr<Communicator> staged(Device& device, std::unique_ptr<Communicator> inner);

}  // namespace tessera
