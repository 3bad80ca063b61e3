#include <gtest/gtest.h>
#include <mpi.h>

#include "kernels/base/runtime.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  {
    const tessera::Runtime runtime;
    failed = RUN_ALL_TESTS();
    // A failure on one rank is a failure of the test, whatever the launcher makes of exit codes.
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return failed;
}
