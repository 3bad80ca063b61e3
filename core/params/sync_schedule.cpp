#include "core/params/sync_schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "kernels/digest/digest.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

void make_pools(const SyncInputs& of, SyncSchedule& schedule) {
  std::array<PoolId, process_groups.size()> shared;
  for (const BucketGroup& group : of.layout.groups()) {
    const bool alone = of.ranks.of(group.processes, Level::inside).size == 1;  // one rank alone holds all
    PoolId& pool = shared[static_cast<std::size_t>(group.processes)];
    if (of.rules.weights.sharding == Sharding::optimizer || alone)
      pool = schedule.pools.add({group.processes, Residency::resident, 1});
    else if (pool == PoolId{})
      pool = schedule.pools.add({group.processes, Residency::transient, weight_slots});
    schedule.pool_of.add(pool);
    if (of.ranks.sharding.size > 1)
      schedule.shard_pool_of.add(schedule.pools.add({group.processes, Residency::resident, 1, Level::across}));
  }
}

/// Every group once, as a visit without a slot, by first use in training, then in evaluations; groups that nothing uses
/// come last.
std::vector<Visit> by_first_use(const SyncInputs& of) {
  std::vector<Visit> order;
  const auto append = [&](Visit visit) {
    if (std::ranges::find(order, visit.group, &Visit::group) == order.end()) order.push_back(visit);
  };
  for (const std::vector<Access>* accesses : {&of.usage.training, &of.usage.evaluation})
    for (std::size_t i = 0; i < accesses->size(); ++i) {
      const Access& access = (*accesses)[i];
      append(Visit::to(of.layout.group_of(access.param), Sides::both, static_cast<int>(i), access.half));
    }
  for (GroupId group : of.layout.groups().ids()) append(Visit::to(group, Sides::both));
  return order;
}

/// Whether bf16 of a group is staged for the all-gather.
bool ships_source(const SyncInputs& of, GroupId group) {
  return std::ranges::any_of(of.layout.groups()[group].buckets, [&](BucketId b) {
    return travel_of(of.layout.buckets()[b].key.format, of.rules.weights) == Travel::bf16;
  });
}

Visits resident_visits(const SyncInputs& of, const SyncSchedule& schedule, const std::vector<Visit>& order) {
  Visits visits;
  std::array<bool, ring_slots> taken{};
  for (Visit visit : order) {
    if (!schedule.resides(visit.group)) continue;
    visit.pool = schedule.pool_of[visit.group];
    bool& slot = taken[static_cast<std::size_t>(visits.size() % ring_slots)];
    if (of.rules.weights.staging == GatherStaging::ring && ships_source(of, visit.group))
      // mutation: all_of_the_ring_is_staged_at_once
      visit.staged = std::exchange(slot, true) ? StagedAt::gather : StagedAt::publication;
    visits.add(visit);
  }
  if (of.rules.gather == Overlap::on)
    for (int i = 1; i < visits.size(); ++i) visits[{i - 1}].prefetch = {i};
  return visits;
}

/// Each group's shard once, in the order of first use, staged as the group is. What is staged with its gather cannot be
/// prefetched: its slot of the ring is in use until then.
Visits shard_visits(const SyncInputs& of, const SyncSchedule& schedule, const std::vector<Visit>& order) {
  Visits visits;
  if (of.ranks.sharding.size == 1) return visits;
  for (Visit visit : order) {
    visit.pool = schedule.shard_pool_of[visit.group];
    const auto whole = std::ranges::find(schedule.resident, visit.group, &Visit::group);
    if (whole != schedule.resident.end()) visit.staged = whole->staged;
    const VisitId id = visits.add(visit);
    if (of.rules.gather == Overlap::on && id.value > 0 && visit.staged == StagedAt::publication)
      visits[{id.value - 1}].prefetch = id;
  }
  return visits;
}

Visits transient_visits(const SyncInputs& of, const SyncSchedule& schedule, std::span<const Access> accesses,
                        int passes) {
  const std::vector<Visit> pass = visits_of(accesses, of.layout, of.rules.weights);
  Visits visits;
  IndexedBy<PoolId, VisitId> last(schedule.pools.size());
  for (int m = 0; m < passes; ++m)
    for (Visit visit : pass) {
      if (schedule.resides(visit.group)) continue;
      visit.pool = schedule.pool_of[visit.group];
      visit.micro_batch = m;
      VisitId& before = last[visit.pool];
      const VisitId id{visits.size()};
      if (before != VisitId{}) {
        Visit& open = visits[before];
        if (open.serves(visit.group, visit.sides)) continue;  // its weights stay in their slot
        open.next = id;
        if (of.rules.gather == Overlap::on) open.prefetch = id;
        visit.slot = (open.slot + 1) % schedule.pools[visit.pool].slots;  // mutation: prefetched_into_the_open_slot
      }
      before = visits.add(visit);
    }
  return visits;
}

/// Whether a group has two payloads, neither of which gives the other.
bool has_two_payloads(const SyncInputs& of, GroupId group) {
  return std::ranges::any_of(of.layout.groups()[group].buckets, [&](BucketId b) {
    const WeightFormat& format = of.layout.buckets()[b].key.format;
    return payload_of(format, travel_of(format, of.rules.weights), Side::columnwise) == Sides::columnwise;
  });
}

Visits inspection_visits(const SyncInputs& of, const SyncSchedule& schedule, const std::vector<Visit>& order) {
  Visits visits;
  IndexedBy<PoolId, VisitId> last(schedule.pools.size());
  const auto add = [&](GroupId group, Sides sides) {
    Visit visit = Visit::to(group, sides);
    visit.pool = schedule.pool_of[group];
    VisitId& before = last[visit.pool];
    const VisitId id = visits.add(visit);
    if (before != VisitId{}) visits[before].next = id;
    before = id;
  };
  for (const Visit& one : order) {
    add(one.group, schedule.resides(one.group) ? Sides::both : Sides::rowwise);
    if (!schedule.resides(one.group) && has_two_payloads(of, one.group)) add(one.group, Sides::columnwise);
  }
  return visits;
}

/// Numbers of a micro-batch's first and last contribution to a group's gradients.
struct Lifetime {
  GroupId group;
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = -1;
};

/// Whether a group's whole gradients stay in a slot of its own for the whole step.
bool keeps_gradients(const SyncInputs& of, const SyncSchedule& schedule, GroupId group) {
  return schedule.resides(group) && !of.rules.reduces_each_micro_batch();  // mutation: one_rank_accumulates
}

/// Lists of the groups that share gradient slots.
std::vector<std::vector<GroupId>> sharers(const SyncInputs& of, const SyncSchedule& schedule) {
  std::vector<std::vector<GroupId>> all(process_groups.size());
  for (GroupId group : of.layout.groups().ids()) {
    if (keeps_gradients(of, schedule, group))
      all.push_back({group});
    else
      all[static_cast<std::size_t>(of.layout.groups()[group].processes)].push_back(group);
  }
  return all;
}

/// Lifetimes of groups, by first contribution.
std::vector<Lifetime> lifetimes(const SyncInputs& of, const std::vector<GroupId>& groups) {
  std::vector<Lifetime> all;
  for (GroupId group : groups) {
    Lifetime& life = all.emplace_back(Lifetime{group});
    for (std::size_t i = 0; i < of.usage.contributions.size(); ++i) {
      if (of.layout.group_of(of.usage.contributions[i].param) != group) continue;
      life.last = static_cast<std::int64_t>(i);
      life.first = std::min(life.first, life.last);
    }
  }
  std::ranges::stable_sort(all, {}, &Lifetime::first);
  return all;
}

/// The slots of groups that share them, from 0 on, in the order of `lives`. A slot is free for a group if its last
/// contribution comes before the first one of the group's predecessor. Then it is reduced while the predecessor
/// accumulates.
std::vector<int> dealt(const std::vector<Lifetime>& lives) {
  std::vector<std::int64_t> last;  // of each slot: number of its last contribution
  std::vector<int> slots;
  std::int64_t before = -1;
  for (const Lifetime& life : lives) {
    const auto free = std::ranges::find_if(last, [&](std::int64_t contribution) { return contribution < before; });
    slots.push_back(static_cast<int>(free - last.begin()));
    if (free == last.end()) last.push_back(life.last);
    else *free = life.last;
    before = life.first;
  }
  return slots;
}

/// Makes the slots that were dealt. The last two of several are the ends of one memory. It has room for what
/// accumulates at once, and for a group's reduction while the next one accumulates.
void add_gradient_slots(const SyncInputs& of, SyncSchedule& schedule, const std::vector<Lifetime>& lives,
                        const std::vector<int>& slots) {
  const int count = slots.empty() ? 0 : std::ranges::max(slots) + 1;
  const int memories = schedule.gradient_slots.empty() ? 0 : schedule.gradient_slots.back().memory + 1;
  for (int slot = 0; slot < count; ++slot) {
    const int low = std::min(slot, std::max(0, count - 2));  // the slot at the low end of this one's memory
    std::vector<Tenant> tenants;
    for (std::size_t i = 0; i < lives.size(); ++i)
      if (slots[i] == low || (low == count - 2 && slots[i] > low))
        tenants.push_back({slots[i] == low ? End::low : End::high, gradient_elements(of.layout, lives[i].group),
                           lives[i].first, std::max(lives[i].last, i + 1 < lives.size() ? lives[i + 1].first : 0)});
    const bool keeps = keeps_gradients(of, schedule, lives.front().group);
    const End end = slot == low ? End::low : End::high;  // mutation: both_slots_at_one_end
    schedule.gradient_slots.push_back(
        {keeps ? Residency::resident : Residency::transient, memories + low, room_for(tenants), end});
  }
}

/// Deals gradient slots; returns the slot of each group.
IndexedBy<GroupId, int> deal_gradient_slots(const SyncInputs& of, SyncSchedule& schedule) {
  IndexedBy<GroupId, int> slot_of(of.layout.groups().size(), -1);
  for (const std::vector<GroupId>& groups : sharers(of, schedule)) {
    const int base = static_cast<int>(schedule.gradient_slots.size());
    const std::vector<Lifetime> lives = lifetimes(of, groups);
    const std::vector<int> slots = dealt(lives);
    add_gradient_slots(of, schedule, lives, slots);
    for (std::size_t i = 0; i < lives.size(); ++i) slot_of[lives[i].group] = base + slots[i];
  }
  return slot_of;
}

void add_reductions(const SyncInputs& of, SyncSchedule& schedule) {
  const IndexedBy<GroupId, int> slot_of = deal_gradient_slots(of, schedule);
  IndexedBy<GroupId, int> rounds(slot_of.size(), 0);
  const auto add = [&](GroupId group, int micro_batches, BeginAt begin) {
    Reduction one{group, rounds[group]++, micro_batches, slot_of[group], SumInto::assign, begin, {}, 0};
    if (one.round > 0) one.sum = SumInto::add;
    if (rounds[group] == of.rules.micro_batches)
      one.idle = of.rules.idle_ranks * of.ranks.of(of.layout.groups()[group].processes).size / of.ranks.world.size;
    const auto visit = std::ranges::find(schedule.resident, group, &Visit::group);
    if (of.rules.weights.staging != GatherStaging::ring && ships_source(of, group) && visit != schedule.resident.end())
      one.after = {static_cast<int>(visit - schedule.resident.begin())};
    schedule.reductions.push_back(one);
  };
  const auto expected = [&](GroupId group) {
    return keeps_gradients(of, schedule, group) ? of.rules.micro_batches : 1;
  };
  const std::vector<Contribution>& all = of.usage.contributions;
  const auto group_of = [&](std::size_t i) { return of.layout.group_of(all[i].param); };
  IndexedBy<GroupId, std::size_t> last(slot_of.size(), all.size());  // contribution to each group in a micro-batch
  for (std::size_t i = 0; i < all.size(); ++i) last[group_of(i)] = i;
  for (int m = 0; m < of.rules.micro_batches; ++m)
    for (std::size_t i = 0; i < all.size(); ++i) {
      const GroupId group = group_of(i);
      const bool at_end = m + 1 == of.rules.micro_batches && of.rules.reduce == Overlap::on;
      if (i == last[group] && (at_end || !keeps_gradients(of, schedule, group)))
        add(group, expected(group), BeginAt::last_write);
    }
  for (GroupId group : slot_of.ids())
    if (rounds[group] == 0) add(group, last[group] == all.size() ? 0 : expected(group), BeginAt::end_of_step);
}

/// Whether the ranks that share a bucket agree on amaxes before they quantize their shards of it.
bool needs_amaxes(const SyncInputs& of, const SyncSchedule& schedule, GroupId group, const Bucket& bucket) {
  if (travel_of(bucket.key.format, of.rules.weights) != Travel::codes) return false;
  const auto traits = traits_of(*bucket.key.format.codes);
  if (!schedule.resides(group)) return traits.tensor_amax;
  if (traits.columnwise == formats::Columnwise::requantized) return false;
  return !bucket.owns_blocks() || (traits.tensor_amax && bucket.key.owner == OwnerKind::element_sharded);
}

void add_amaxes(const SyncInputs& of, SyncSchedule& schedule) {
  for (ProcessGroup processes : process_groups) {
    if (of.ranks.of(processes).size == 1) continue;
    const auto agrees = [&](GroupId group) {
      const BucketGroup& own = of.layout.groups()[group];
      return own.processes == processes && std::ranges::any_of(own.buckets, [&](BucketId b) {
               return needs_amaxes(of, schedule, group, of.layout.buckets()[b]);
             });
    };
    bool any = false;
    for (GroupId group : of.layout.groups().ids()) any |= agrees(group);
    if (any) schedule.amaxes.push_back(processes);
  }
}

}  // namespace

std::int64_t gradient_elements(const ParamLayout& layout, GroupId group) {
  constexpr std::int64_t vector = 64;  // of any access, also where a group ends at a memory's end
  std::int64_t sum = 0;
  for (BucketId b : layout.groups()[group].buckets) sum += layout.buckets()[b].size.value;
  return round_up(sum, vector);
}

bool meet(const SyncSchedule& schedule, const ParamLayout& layout, const Reduction& one, const Reduction& other) {
  const GradientSlot &a = schedule.slot_of(one), &b = schedule.slot_of(other);
  const auto interval = [&](const Reduction& of, const GradientSlot& slot) {
    return interval_at(slot.end, gradient_elements(layout, of.group), slot.elements);
  };
  return a.memory == b.memory && interval(one, a).meets(interval(other, b));  // mutation: the_other_end_is_not_awaited
}

SyncSchedule schedule_of(const SyncInputs& of) {
  SyncSchedule schedule;
  make_pools(of, schedule);
  const std::vector<Visit> order = by_first_use(of);
  schedule.resident = resident_visits(of, schedule, order);
  schedule.shards = shard_visits(of, schedule, order);
  schedule.training = transient_visits(of, schedule, of.usage.training, of.rules.micro_batches);
  schedule.evaluation = transient_visits(of, schedule, of.usage.evaluation, 1);
  schedule.inspection = inspection_visits(of, schedule, order);
  schedule.contributions = IndexedBy<ParamId, int>(of.registry.size(), 0);
  // mutation: every_gradient_is_written_once
  for (const Contribution& one : of.usage.contributions) ++schedule.contributions[one.param];
  if (of.rules.micro_batches > 0) add_reductions(of, schedule);
  add_amaxes(of, schedule);
  return schedule;
}

std::uint64_t SyncSchedule::hash() const {
  std::uint64_t hash = 0;
  const auto mix = [&hash](auto... values) {
    ((hash = mix64(hash ^ static_cast<std::uint64_t>(values)) + static_cast<std::uint64_t>(values)), ...);
  };
  for (const Pool& pool : pools) mix(pool.processes, pool.residency, pool.slots, pool.level);
  for (PoolId pool : pool_of) mix(pool.value);
  for (PoolId pool : shard_pool_of) mix(pool.value);
  for (const Visits* visits : {&shards, &resident, &training, &evaluation, &inspection}) {
    mix(visits->size());
    for (const Visit& v : *visits)
      mix(v.group.value, v.sides, v.pool.value, v.slot, v.micro_batch, v.next.value, v.prefetch.value, v.staged);
  }
  for (const GradientSlot& slot : gradient_slots) mix(slot.residency, slot.memory, slot.elements, slot.end);
  for (const Reduction& r : reductions)
    mix(r.group.value, r.round, r.micro_batches, r.slot, r.sum, r.begin, r.after.value, r.idle);
  for (ProcessGroup processes : amaxes) mix(processes);
  for (int count : contributions) mix(count);
  return hash;
}

}  // namespace tessera
