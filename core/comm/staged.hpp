#pragma once
#include <memory>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"

namespace tessera {

/// For an `inner` that reads host memory only: every buffer goes through page-locked memory, in and out. The host waits
/// at each submit() for what this rank brings, so computation hides the transport but not the way to it.
std::unique_ptr<Communicator> staged(Device& device, std::unique_ptr<Communicator> inner);

}  // namespace tessera
