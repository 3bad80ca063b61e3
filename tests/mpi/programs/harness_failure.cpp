// Fails on the last rank alone: a test of the test harness, which must report it.
#include <gtest/gtest.h>
#include <mpi.h>

namespace {

TEST(Harness, FailsOnTheLastRank) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_NE(rank, size - 1) << "on purpose";
}

}  // namespace
