#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// A key that a resumed run must keep, unless asked to change it, or that may change what it computes, and whose value
/// differs.
struct KeyChange {
  std::string key, before, now;  ///< values as a deck writes them; "absent" if the key's section is absent
  Restart restart = Restart::fixed;
};
/// The order in which a step's gradients are summed, as far as ranks and sharding decide it. Orders that differ give
/// other bits. `ranks` 0: the order of the batch's micro-batches, whatever the ranks.
struct SumOrder {
  std::int64_t ranks = 0;
  bool operator==(const SumOrder&) const = default;
};
/// That of a derived config on so many ranks.
SumOrder sum_order(const RunConfig& config, std::int64_t ranks);

/// A derived config and the number of ranks that train with it.
struct Launched {
  const RunConfig& config;
  std::int64_t ranks;
};
/// The keys of that kind in which two differ, and "ranks" where the sums of the new config depend on them. Keys that
/// matter to the order of sums alone are among them where that differs.
std::vector<KeyChange> changed_keys(const Launched& before, const Launched& now);

/// The end of a sentence on what a resumed run must keep: "..., unless `train --allow-change KEY` lets it change".
std::string keep_it_text(const std::string& key, Restart restart);

/// A finding for each key that a resumed run must keep and whose value differs from the saved run's, except keys in
/// `asked` (`train --allow-change`). Both configs are derived.
std::vector<Finding> changes_at_restart(const RunConfig& saved, const RunConfig& now,
                                        const std::set<std::string>& asked = {});

}  // namespace tessera
