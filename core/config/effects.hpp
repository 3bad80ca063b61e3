#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Advice on keys that a deck gives and that have no effect beside its others, in the order of the deck.
/// `given`: the paths of all keys that were written down, in a deck, its bases or overrides. A switch that is given as
/// off is no reason to speak. Of a resolved deck, which gives every key, only values count that are no defaults.
std::vector<Finding> without_effect(const RunConfig& config, const std::set<std::string>& given);

/// When a key has an effect, as "only with position rotary (model.position)"; empty: always.
std::string when_it_matters(const std::string& key);

}  // namespace tessera
