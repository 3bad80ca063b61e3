#pragma once
#include "core/config/choices.hpp"

namespace tessera {

/// Whether a collective runs under computation or is waited for where it begins. Changes when, never what.
enum class Overlap : bool { off, on };

/// When the two collectives of a step run, and how gradients are summed.
struct SyncRules {
  Overlap gather = Overlap::on;
  Overlap reduce = Overlap::on;
  int micro_batches = 1;
  ReduceOrder order = ReduceOrder::rank;
};

}  // namespace tessera
