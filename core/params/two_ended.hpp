#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace tessera {

/// Double buffering in one memory: two slots lie at its low and its high end. What is in both at once must fit. So the
/// memory is as large as the largest neighbours in time, not twice as large as the largest of all.
enum class End : std::uint8_t { low, high };
constexpr const char* name_of(End end) { return end == End::low ? "low" : "high"; }

/// A range of a memory.
struct Interval {
  std::int64_t begin = 0, end = 0;
  bool meets(const Interval& other) const { return begin < other.end && other.begin < end; }
};
constexpr Interval interval_at(End end, std::int64_t size, std::int64_t memory) {
  return end == End::low ? Interval{0, size} : Interval{memory - size, memory};
}

/// What is in a slot from one time to another, both included.
struct Tenant {
  End end = End::low;
  std::int64_t size = 0, from = 0, to = 0;
};

/// Size of a memory in which no two tenants of different ends meet that are there at once.
inline std::int64_t room_for(std::vector<Tenant> tenants) {
  std::ranges::stable_sort(tenants, {}, &Tenant::from);
  std::int64_t most = 0;
  std::array<std::vector<Tenant>, 2> present;
  for (const Tenant& one : tenants) {
    most = std::max(most, one.size);
    for (std::vector<Tenant>& end : present)
      std::erase_if(end, [&](const Tenant& other) { return other.to < one.from; });
    for (const Tenant& other : present[one.end == End::low ? 1 : 0]) most = std::max(most, one.size + other.size);
    present[one.end == End::low ? 0 : 1].push_back(one);
  }
  return most;
}

}  // namespace tessera
