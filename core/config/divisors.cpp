#include "core/config/divisors.hpp"

#include <fmt/format.h>

#include <iterator>

namespace tessera {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t i = 1; i * i <= n; ++i) {
    if (n % i != 0) continue;
    small.push_back(i);
    if (i * i != n) large.insert(large.begin(), n / i);
  }
  small.insert(small.end(), large.begin(), large.end());
  return small;
}

std::string one_of(const std::vector<std::int64_t>& numbers) {
  if (numbers.size() == 1) return fmt::format("{}", numbers.front());
  return fmt::format("{} or {}", fmt::join(numbers.begin(), std::prev(numbers.end()), ", "), numbers.back());
}

}  // namespace tessera
