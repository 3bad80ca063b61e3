#pragma once
#include "core/config/travel.hpp"

namespace tessera {

/// Whether a collective overlaps with computation or is waited for where it begins. Changes time, never bits.
enum class Overlap : bool { off, on };

/// When the two collectives of a step run, how gradients are summed, and how weights are held and travel.
struct SyncRules {
  Overlap gather = Overlap::on;
  Overlap reduce = Overlap::on;
  int micro_batches = 1;  ///< of a step; 0: no training, gradients have no memory
  ReduceOrder order = ReduceOrder::rank;
  WeightRules weights = {};
};

}  // namespace tessera
