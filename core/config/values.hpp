#pragma once
#include <map>
#include <string>

#include "core/config/config.hpp"

namespace tessera {

/// Every key with its value as decks write it, by path; without those of absent sections and of derived keys that are
/// still open.
std::map<std::string, std::string> values_of(const RunConfig& config);

}  // namespace tessera
