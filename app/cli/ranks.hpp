#pragma once
#include <functional>

#include "core/comm/mpi.hpp"

namespace tessera {

/// Whether this process is the first of its launch, by the variables of launchers. Asked before MPI starts, and among
/// ranks that have wrongly started as runs of their own, each of which is rank 0 to MPI. Local.
bool first_of_launch();

/// Initialises MPI, runs a verb on every rank, and returns its exit code, the same on all ranks even if the verb
/// throws. An error that other ranks cannot learn of aborts all ranks. Collective over the world.
int on_all_ranks(const std::function<int(Mpi&, Control&)>& verb);

/// Runs the part of a verb in which collectives may be under way. An exception that the ranks have not agreed on aborts
/// all ranks at once, since unwinding would wait for collectives that the others never begin.
int or_end_all_ranks(Mpi& mpi, const std::function<int()>& work);

}  // namespace tessera
