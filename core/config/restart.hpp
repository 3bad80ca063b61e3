#pragma once
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
/// The keys of that kind in which two derived configs differ.
std::vector<KeyChange> changed_keys(const RunConfig& before, const RunConfig& now);

/// The end of a sentence on what a resumed run must keep: "..., unless `train --allow-change KEY` lets it change".
std::string keep_it_text(const std::string& key, Restart restart);

/// A finding for each key that a resumed run must keep and whose value differs from the saved run's, except keys in
/// `asked` (`train --allow-change`). Both configs are derived.
std::vector<Finding> changes_at_restart(const RunConfig& saved, const RunConfig& now,
                                        const std::set<std::string>& asked = {});

}  // namespace tessera
