#include <algorithm>
#include <iterator>

#include "core/params/sync_schedule.hpp"

/// visits_of(): the visits of one pass over a micro-batch.
namespace tessera {
namespace {

/// An access, its group and the copies that it needs.
struct Need {
  const Access* access;
  int number;  ///< of the access in its pass
  GroupId group;
  Sides sides;
};

/// The accesses of a run to one group, in order.
std::vector<Need> needs_of(std::span<const Need> run, GroupId group) {
  std::vector<Need> own;
  std::ranges::copy_if(run, std::back_inserter(own), [&](const Need& need) { return need.group == group; });
  return own;
}

/// Where to divide a group's accesses into two visits. At the first access to a second copy, if all accesses to the
/// first copy come before it; else the end.
std::vector<Need>::const_iterator parting(const std::vector<Need>& needs) {
  const auto differ = [](const Need& need, Sides sides) { return need.sides != Sides::none && need.sides != sides; };
  const auto first = std::ranges::find_if(needs, [](const Need& need) { return need.sides != Sides::none; });
  if (first == needs.end()) return needs.end();
  const auto second = std::find_if(first, needs.end(), [&](const Need& need) { return differ(need, first->sides); });
  const bool again = std::any_of(second, needs.end(), [&](const Need& need) { return need.sides == first->sides; });
  return again ? needs.end() : second;
}

Visit visit_of(std::span<const Need> needs) {
  Visit visit = Visit::to(needs.front().group, Sides::none, needs.front().number, needs.front().access->half);
  for (const Need& need : needs) visit.sides = visit.sides | need.sides;
  return visit;
}

/// The visits of one run of accesses.
void add_run(std::span<const Need> run, std::vector<Visit>& visits) {
  std::vector<GroupId> groups;
  for (const Need& need : run)
    if (std::ranges::find(groups, need.group) == groups.end()) groups.push_back(need.group);
  const std::ptrdiff_t before = std::ssize(visits);
  for (GroupId group : groups) {
    const std::vector<Need> needs = needs_of(run, group);
    const auto cut = parting(needs) - needs.begin();
    const std::span<const Need> all(needs), first = all.first(static_cast<std::size_t>(cut)),
                                            then = all.subspan(static_cast<std::size_t>(cut));
    for (std::span<const Need> part : {first, then})
      if (!part.empty()) visits.push_back(visit_of(part));
  }
  std::ranges::sort(visits.begin() + before, visits.end(), {}, &Visit::access);
}

}  // namespace

Sides payload_of(const Access& access, const ParamLayout& layout, const WeightRules& rules) {
  const WeightFormat& format = layout.buckets()[layout.placement(access.param).bucket].key.format;
  return payload_of(format, travel_of(format, rules), access.side);
}

std::vector<Visit> visits_of(std::span<const Access> accesses, const ParamLayout& layout, const WeightRules& rules) {
  std::vector<Need> all;
  for (std::size_t i = 0; i < accesses.size(); ++i)
    all.push_back({&accesses[i], static_cast<int>(i), layout.group_of(accesses[i].param),
                   payload_of(accesses[i], layout, rules)});
  const auto unit = [&](const Need& need) { return layout.groups()[need.group].unit; };
  std::vector<Visit> visits;
  for (std::span<const Need> rest(all); !rest.empty();) {
    const auto end = std::ranges::find_if(rest, [&](const Need& need) { return unit(need) != unit(rest.front()); });
    const auto length = static_cast<std::size_t>(end - rest.begin());
    add_run(rest.first(length), visits);
    rest = rest.subspan(length);
  }
  return visits;
}

}  // namespace tessera
