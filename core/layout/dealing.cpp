#include "core/layout/dealing.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tessera {
namespace {

OwnerLoad sum_of(std::span<const OwnerLoad> members) {
  OwnerLoad sum;
  for (const OwnerLoad& member : members) sum += member;
  return sum;
}

/// Number of members of each run: see Dealing::deal.
std::vector<int> run_lengths(std::span<const OwnerLoad> members, int runs) {
  const int count = static_cast<int>(members.size());
  const OwnerLoad all = sum_of(members);
  std::vector<int> lengths;
  OwnerLoad so_far;
  int length = 0;
  for (int i = 0; i < count; ++i) {
    so_far += members[static_cast<std::size_t>(i)];
    ++length;
    const int closed = static_cast<int>(lengths.size()), later = runs - closed - 1, left = count - i - 1;
    const bool full = later > 0 && runs * so_far.cost >= (closed + 1) * all.cost;
    if (!full && left != later) continue;
    lengths.push_back(length);
    length = 0;
  }
  return lengths;
}

}  // namespace

double newton_schulz_cost(const ParamSpec& spec) {
  double cost = 0;
  const std::int64_t columns = spec.member[-1];
  const Shape parts = spec.part_rows();
  for (int i = 0; i < parts.rank(); ++i) {
    const std::int64_t rows = parts[i];
    const auto small = static_cast<double>(std::min(rows, columns)), big = static_cast<double>(std::max(rows, columns));
    cost += small * small * big;
  }
  return cost;
}

Dealing::Dealing(int ranks, std::span<const OwnerLoad> members) : loads_(static_cast<std::size_t>(ranks)) {
  std::int64_t largest = 0;
  for (const OwnerLoad& member : members) largest = std::max(largest, member.elements);
  most_elements_ = 1.25 * static_cast<double>(sum_of(members).elements) / ranks + static_cast<double>(largest);
}

int Dealing::rank_for(const OwnerLoad& run, const std::vector<bool>& taken) const {
  int best = -1;
  std::pair<bool, double> least;  // of `best`: whether its elements would exceed the limit, and its cost
  for (std::size_t r = 0; r < loads_.size(); ++r) {
    if (taken[r]) continue;
    const std::pair with(static_cast<double>(loads_[r].elements + run.elements) > most_elements_, loads_[r].cost);
    if (best >= 0 && !(with < least)) continue;
    best = static_cast<int>(r);
    least = with;
  }
  return best;
}

std::vector<OwnedRange> Dealing::deal(std::span<const OwnerLoad> members) {
  std::vector<OwnedRange> runs;
  std::vector<OwnerLoad> loads;
  const int most = static_cast<int>(std::min(members.size(), loads_.size()));
  for (int length : run_lengths(members, most)) {
    runs.push_back({length, -1});
    loads.push_back(sum_of(members.first(static_cast<std::size_t>(length))));
    members = members.subspan(static_cast<std::size_t>(length));
  }
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return loads[a].cost > loads[b].cost; });
  std::vector<bool> taken(loads_.size());
  for (std::size_t run : order) {
    runs[run].rank = rank_for(loads[run], taken);
    const auto rank = static_cast<std::size_t>(runs[run].rank);
    taken[rank] = true;
    loads_[rank] += loads[run];
  }
  return runs;
}

GroupedDealing::GroupedDealing(int ranks, int sharding_groups, const std::vector<std::vector<OwnerLoad>>& buckets)
    : loads_(static_cast<std::size_t>(ranks)) {
  const int numbers = ranks / sharding_groups;
  std::vector<OwnerLoad> all;
  for (const std::vector<OwnerLoad>& members : buckets) all.insert(all.end(), members.begin(), members.end());
  Dealing to_numbers(numbers, all);
  std::vector<std::vector<OwnedRange>> by_number;                              // of each bucket
  std::vector<std::vector<OwnerLoad>> of_number(static_cast<std::size_t>(numbers));  // members dealt to each
  for (const std::vector<OwnerLoad>& members : buckets) {
    auto member = members.begin();
    for (const OwnedRange& run : by_number.emplace_back(to_numbers.deal(members))) {
      std::vector<OwnerLoad>& dealt = of_number[static_cast<std::size_t>(run.rank)];
      dealt.insert(dealt.end(), member, member + run.members);
      member += run.members;
    }
  }
  std::vector<Dealing> to_groups;
  for (const std::vector<OwnerLoad>& members : of_number) to_groups.emplace_back(sharding_groups, members);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::span<const OwnerLoad> rest(buckets[b]);
    std::vector<OwnedRange>& runs = runs_.emplace_back();
    for (const OwnedRange& of : by_number[b]) {
      const auto members = static_cast<std::size_t>(of.members);
      for (const OwnedRange& run : to_groups[static_cast<std::size_t>(of.rank)].deal(rest.first(members)))
        runs.push_back({run.members, run.rank * numbers + of.rank});
      rest = rest.subspan(members);
    }
  }
  for (int r = 0; r < ranks; ++r)
    loads_[static_cast<std::size_t>(r)] =
        to_groups[static_cast<std::size_t>(r % numbers)].loads()[static_cast<std::size_t>(r / numbers)];
}

}  // namespace tessera
