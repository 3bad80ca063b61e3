#pragma once
#include "core/config/choices.hpp"

namespace tessera {

/// Whether a collective runs under computation or is waited for where it begins. Changes when, never what.
enum class Overlap : bool { off, on };

/// How weights are kept, and how those that the recipe quantizes are held and travel. Changes memory and bytes, never
/// what a product reads.
struct WeightRules {
  PrimaryWeights held = PrimaryWeights::bf16;
  GatherWire wire = GatherWire::automatic;
  GatherStaging staging = GatherStaging::automatic;
  Sharding sharding = Sharding::optimizer;
};

/// When the two collectives of a step run, how gradients are summed, and how weights are held and travel.
struct SyncRules {
  Overlap gather = Overlap::on;
  Overlap reduce = Overlap::on;
  int micro_batches = 1;  ///< 0: weights alone, that no step changes; gradients have no memory
  ReduceOrder order = ReduceOrder::rank;
  WeightRules weights = {};
};

}  // namespace tessera
