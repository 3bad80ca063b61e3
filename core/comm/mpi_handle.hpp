#pragma once
#include <mpi.h>

#include "core/comm/control.hpp"

namespace tessera {

/// The communicator behind a Control, for a library whose own interface takes one: io/hdf5 alone includes this.
/// MPI_COMM_NULL where the Control is none of MPI's. It stays the Control's.
MPI_Comm mpi_handle(const Control& control);

}  // namespace tessera
