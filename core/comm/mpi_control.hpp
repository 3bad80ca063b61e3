#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// Control on a duplicate of the world's communicator. `watch` must outlive it. Collective over the world.
std::unique_ptr<Control> mpi_control(MpiWatch& watch, std::chrono::seconds timeout);

}  // namespace tessera
