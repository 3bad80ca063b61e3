#pragma once
#include "core/comm/mpi.hpp"

namespace tessera::test {

/// What main() calls once all ranks have run their tests, before MPI_Finalize.
inline void (*before_finalize)() = nullptr;

/// MPI, which main() initialises. Ends before MPI_Finalize, so that the other ranks hear of this one's end in order.
inline Mpi& mpi() {
  static Mpi* const instance = new Mpi(nullptr, nullptr);
  before_finalize = [] { delete instance; };
  return *instance;
}

}  // namespace tessera::test
