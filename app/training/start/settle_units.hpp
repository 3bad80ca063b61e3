#pragma once
#include "app/training/start/preparation.hpp"

namespace tessera {

/// Checks units that multiply codes where the project has never run them (gemm::Standing::claimed): each kind of
/// product of the run, on every rank. Notes the findings in `run.units`. Kinds that are wrong on any rank are decoded
/// on all; rank 0 says so once, and the run is planned anew. Needs a living Runtime, before the run's Device. Throws on
/// all ranks if the new plan is refused. Collective over the world.
void settle_units(Prepared& run, const Mpi& mpi, Control& control);

}  // namespace tessera
