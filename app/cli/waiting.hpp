#pragma once
#include <string>

namespace tessera {

/// The environment variables by which OpenMP's threads wait for each other, as libraries read them when they are
/// loaded: "GOMP_SPINCOUNT=1000 KMP_BLOCKTIME=0". Values of the environment, else those that bound_spinning() sets.
std::string thread_waiting();

/// Makes threads that wait at a barrier spin briefly and then sleep, unless the environment says how they wait. By
/// default they spin for milliseconds; if another process shares their cores, for whole time slices at every barrier.
/// Since libraries read the variables only at load time, the program sets them. Then it executes itself again, once, as
/// the same process with the same descriptors. Call it before MPI and threads start and before anything is printed.
/// Returns if the variables are set, in GPU builds (whose threads do not compute), and if the program cannot execute
/// itself.
void bound_spinning(char* const* argv);

}  // namespace tessera
