#pragma once
#include <map>
#include <string>

#include "core/config/config.hpp"

namespace tessera {

/// Path -> value of every key, written as in a deck. Keys of absent sections and derived keys that are still open are
/// left out.
std::map<std::string, std::string> values_of(const RunConfig& config);

}  // namespace tessera
