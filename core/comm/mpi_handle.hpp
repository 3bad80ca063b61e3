#pragma once
#include <mpi.h>

#include "core/comm/control.hpp"

namespace tessera {

/// The MPI communicator of a Control, for HDF5's MPI-IO driver, which duplicates it for each file. MPI_COMM_SELF
/// without MPI. Included only by io/hdf5, where HDF5's header includes mpi.h anyway, and by a test. Local.
inline MPI_Comm communicator_of(const Control& control) {
  const void* const native = control.native();
  return native ? *static_cast<const MPI_Comm*>(native) : MPI_COMM_SELF;
}

}  // namespace tessera
