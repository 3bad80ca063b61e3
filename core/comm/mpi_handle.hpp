#pragma once
#include <mpi.h>

#include "core/comm/control.hpp"

namespace tessera {

/// The communicator of a Control, for HDF5's MPI-IO driver, which makes a duplicate of its own for each file. Included
/// by io/hdf5 alone, whose header of HDF5 brings mpi.h in any case, and by a test. Without MPI it is that of one
/// process. Local.
inline MPI_Comm communicator_of(const Control& control) {
  const void* const native = control.native();
  return native ? *static_cast<const MPI_Comm*>(native) : MPI_COMM_SELF;
}

}  // namespace tessera
