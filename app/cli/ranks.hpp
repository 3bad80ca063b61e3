#pragma once
#include <functional>

#include "core/comm/mpi.hpp"

namespace tessera {

/// Runs a verb on every rank of a launch, with MPI for its life: returns its exit code, the same on all ranks whatever
/// it throws. An error that the other ranks cannot learn of ends them all.
int on_all_ranks(const std::function<int(Mpi&, Control&)>& verb);

/// The part of a verb in which collectives may be under way. What it throws without all ranks having agreed on it ends
/// them at once: unwinding would wait for collectives that the others never begin.
int or_end_all_ranks(Mpi& mpi, const std::function<int()>& work);

}  // namespace tessera
