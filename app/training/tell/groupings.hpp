#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/training/tell/hosts_text.hpp"

namespace tessera {

/// What one value of parallel.sharding_group costs.
struct Grouping {
  std::int64_t ranks = 0;   ///< of a sharding group
  std::int64_t memory = 0;  ///< bytes of the rank that needs most
  Received received;        ///< in a step, over the hosts, where more comes from others
};

/// Plans every number of ranks in a sharding group that `ranks` ranks of `config` allow, ascending. `config` is not
/// refused as it is. Local.
std::vector<Grouping> groupings(const RunConfig& config, int ranks, int hosts);

/// A line for each, and one that names the one which brings least from other hosts among those that fit. `memory`:
/// bytes that a rank has; 0: no bound. Of equals the one that needs least memory.
std::string groupings_text(const std::vector<Grouping>& all, std::int64_t memory);

/// Bytes from inside and across the sharding groups of a plan, as a line; empty if there is one group.
std::string sharding_text(const RunPlan& plan);

}  // namespace tessera
