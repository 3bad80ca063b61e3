#pragma once
#include <string>

namespace tessera {

/// How OpenMP's threads wait for each other, as its libraries read it from the environment when they are loaded:
/// "GOMP_SPINCOUNT=1000 KMP_BLOCKTIME=0". What the environment says of it or, where it says nothing, what
/// bound_spinning() sets.
std::string thread_waiting();

/// Lets threads that wait at a barrier spin briefly and then sleep, unless the environment says how they wait. By
/// default they spin for milliseconds: beside another process on the same cores, for whole time slices at every
/// barrier. Since libraries look at load time alone, the program starts itself again in its place, once, with the
/// variables set: same process, same descriptors. Call it before MPI and threads start and before anything is printed;
/// returns where all is set, where threads do not compute (GPU builds), and where the program cannot start itself.
void bound_spinning(char* const* argv);

}  // namespace tessera
