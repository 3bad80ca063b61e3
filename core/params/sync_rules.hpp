#pragma once
#include "core/config/travel.hpp"

namespace tessera {

/// Whether a collective overlaps with computation or is waited for where it begins. Changes time, never bits.
enum class Overlap : bool { off, on };

/// When the two collectives of a step run, how gradients are summed, and how weights are held and travel.
struct SyncRules {
  Overlap gather = Overlap::on;
  Overlap reduce = Overlap::on;
  int micro_batches = 1;  ///< of a step, on each rank; 0: no training, gradients have no memory
  ReduceOrder order = ReduceOrder::rank;
  WeightRules weights = {};
  int idle_ranks = 0;  ///< the last ranks, whose last micro-batch of a step is padding and counts in no sum
  WireRounding rounding = WireRounding::nearest;  ///< of gradients that travel in bf16

  /// Whether each micro-batch's gradients are summed over ranks by themselves, as order `batch` asks, rather than added
  /// up locally first.
  bool reduces_each_micro_batch() const { return order == ReduceOrder::batch && micro_batches > 1; }
};

}  // namespace tessera
