// library_call KIND: all ranks but the last wait for the last one in a blocking call of MPI, as libraries do.
//  KIND  silent: the last rank sleeps; elsewhere: it waits for the others in a vote; none: it comes late
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "core/comm/mpi.hpp"
#include "core/comm/mpi_handle.hpp"

int main(int argc, char** argv) {
  using namespace tessera;
  Mpi mpi(&argc, &argv);
  if (argc != 2) return 2;
  const std::string kind = argv[1];
  const auto control = mpi.control(std::chrono::seconds(300));
  if (kind != "none") control->wait_at_most(std::chrono::seconds(4));
  control->about("a test");
  const bool last = mpi.rank() == mpi.size() - 1;
  if (last && kind == "silent") sleep(600);  // until the other ranks end it
  if (last && kind == "elsewhere") control->max(1);
  if (last && kind == "none") sleep(1);
  for (int call = 0; call < 3; ++call) {
    const Control::LibraryCall outer(control.get(), "MPI_Barrier");
    const Control::LibraryCall within(control.get(), "another name");
    MPI_Barrier(communicator_of(*control));
  }
  const auto ranks = control->max(mpi.size());
  if (mpi.rank() == 0) std::printf("all %d ranks came\n", static_cast<int>(ranks));
  return 0;
}
