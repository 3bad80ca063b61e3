#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Whether `part` divides `whole`. False for 0: configs are checked even if some keys have been refused and are still
/// 0, to report all errors at once.
constexpr bool divides(std::int64_t part, std::int64_t whole) { return part > 0 && whole % part == 0; }

/// All divisors of n, ascending.
std::vector<std::int64_t> divisors(std::int64_t n);

/// A list for messages: "1, 2 or 4".
std::string one_of(const std::vector<std::int64_t>& numbers);

}  // namespace tessera
