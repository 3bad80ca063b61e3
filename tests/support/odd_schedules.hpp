#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/params/sync_schedule.hpp"

/// Schedules of full sharding, changed into ones that no rule makes.
namespace tessera::test {

/// The visits of those groups that still have their visit's pool, in order, each with the gather `ahead` visits further
/// on as its prefetch. A visit that the one before serves is left out.
inline Visits linked(const Visits& visits, const SyncSchedule& schedule, std::size_t ahead) {
  Visits all;
  IndexedBy<PoolId, std::vector<VisitId>> of(schedule.pools.size());
  for (Visit visit : visits) {
    std::vector<VisitId>& own = of[visit.pool];
    if (schedule.pool_of[visit.group] != visit.pool) continue;
    if (!own.empty() && all[own.back()].serves(visit.group, visit.sides)) continue;
    visit.slot = static_cast<int>(own.size()) % schedule.pools[visit.pool].slots;
    visit.next = visit.prefetch = {};
    own.push_back(all.add(visit));
  }
  for (const std::vector<VisitId>& own : of)
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (i + 1 < own.size()) all[own[i]].next = own[i + 1];
      if (i + ahead < own.size()) all[own[i]].prefetch = own[i + ahead];
    }
  return all;
}

/// Three slots, and gathers that start two visits ahead.
inline void prefetch_two_ahead(SyncSchedule& schedule) {
  for (Pool& pool : schedule.pools)
    if (pool.residency == Residency::transient) pool.slots = 3;
  schedule.training = linked(schedule.training, schedule, 2);
  schedule.evaluation = linked(schedule.evaluation, schedule, 2);
}

/// A group whose weights and gradients are resident, beside transient ones of its process group.
inline void keep_one_group(SyncSchedule& schedule) {
  Visit kept = schedule.training[{1}];
  kept.sides = Sides::both;
  kept.slot = 0;
  kept.next = kept.prefetch = {};
  kept.pool = schedule.pool_of[kept.group] = schedule.pools.add({schedule.pools[kept.pool].processes});
  schedule.training = linked(schedule.training, schedule, 1);
  schedule.evaluation = linked(schedule.evaluation, schedule, 1);
  schedule.inspection = linked(schedule.inspection, schedule, 1);
  for (Visit& visit : schedule.inspection) visit.prefetch = {}, visit.slot = 0;
  schedule.inspection.add(kept);
  schedule.resident.add(kept);
  std::vector<Reduction>& reductions = schedule.reductions;
  const auto last = std::find_if(reductions.rbegin(), reductions.rend(),
                                 [&](const Reduction& one) { return one.group == kept.group; });
  Reduction one = *last;  // in place of all its rounds
  one.micro_batches *= std::exchange(one.round, 0) + 1;
  one.sum = SumInto::assign;
  const int memory = schedule.gradient_slots.back().memory + 1;
  const std::int64_t elements = schedule.slot_of(one).elements;
  one.slot = static_cast<int>(schedule.gradient_slots.size());
  schedule.gradient_slots.push_back({Residency::resident, memory, elements});
  *last = one;
  std::erase_if(reductions, [&](const Reduction& other) { return other.group == one.group && other != one; });
}

}  // namespace tessera::test
