#include <algorithm>
#include <utility>

#include "core/params/sync_schedule.hpp"
#include "core/params/rounds.hpp"

/// check() and collectives_of(): a step by a schedule, without memory and without other ranks.
namespace tessera {
namespace {

class Rehearsal {
 public:
  Rehearsal(const SyncSchedule& schedule, const SyncInputs& of)
      : schedule_(schedule),
        of_(of),
        cursor_(schedule.pools.size()),
        slots_(schedule.pools.size()),
        holder_(schedule.gradient_slots.size()),
        rounds_(schedule, of.layout) {
    for (PoolId pool : schedule.pools.ids()) slots_[pool].resize(static_cast<std::size_t>(schedule.pools[pool].slots));
  }

  /// A step that begins behind a publication, and the next publication.
  void step() {
    begin(schedule_.training);
    if (of_.rules.gather == Overlap::off) resident_are_open();  // since the publication
    for (int m = 0; m < of_.rules.micro_batches; ++m) micro_batch();
    finish_pass("training");
    finish_reductions();
    publish();
  }

  /// An evaluation, before which every resident visit is opened.
  void evaluation() {
    begin(schedule_.evaluation);
    resident_are_open();
    for (const Access& access : of_.usage.evaluation) serve(access);
    finish_pass("evaluation");
  }

  std::vector<std::string> faults;
  std::vector<PlannedCollective> collectives;

 private:
  void fault(GroupId group, const std::string& what) {
    faults.push_back("group " + std::to_string(group.value) + ": " + what);
  }
  void collect(Collective collective, GroupId group, Level level) {
    if (of_.ranks.of(of_.layout.groups()[group].processes, level).size > 1) collectives.push_back({collective, group});
  }

  void micro_batch() {
    auto contribution = of_.usage.contributions.begin();
    for (std::size_t i = 0; i <= of_.usage.training.size(); ++i) {
      for (; contribution != of_.usage.contributions.end() && contribution->accesses <= static_cast<int>(i);
           ++contribution)
        write(contribution->param);
      if (i < of_.usage.training.size()) serve(of_.usage.training[i]);
    }
  }

  // Weights.
  const Visit*& slot_of(const Visit& visit) { return slots_[visit.pool][static_cast<std::size_t>(visit.slot)]; }
  void begin(const Visits& pass) {
    for (PoolId pool : schedule_.pools.ids()) {
      cursor_.clear(pool);
      std::ranges::fill(slots_[pool], nullptr);
    }
    cursor_.begin(schedule_.shards);
    cursor_.begin(schedule_.resident);
    cursor_.begin(pass);
  }
  void resident_are_open() {
    for (const Visits* visits : {&schedule_.shards, &schedule_.resident})
      for (const Visit& visit : *visits) {
        slot_of(visit) = &visit;
        cursor_.advance(visit.pool);
      }
  }
  void serve(const Access& access) {
    const GroupId group = of_.layout.group_of(access.param);
    const PoolId pool = schedule_.pool_of[group];
    const Sides needed = payload_of(access, of_.layout, of_.rules.weights);
    if (const Visit* now = cursor_.open(pool); now && now->serves(group, needed)) return;
    const Visit* next = cursor_.upcoming(pool);
    if (!next || !next->serves(group, needed)) return fault(group, "no visit serves an access");
    open(pool);
  }
  void open(PoolId pool) {
    const Visit& visit = *cursor_.upcoming(pool);
    if (const Visit* before = cursor_.open(pool)) slot_of(*before) = nullptr;
    start(visit);
    if (const Visit* prefetch = cursor_.at(pool, visit.prefetch)) start(*prefetch);
    cursor_.advance(pool);
  }
  void start(const Visit& visit) {
    if (slot_of(visit) == &visit) return;
    if (slot_of(visit)) fault(visit.group, "a gather starts into a slot that is in use");
    const Level level = schedule_.pools[visit.pool].level;
    if (level == Level::inside) open_shard(visit.group);
    slot_of(visit) = &visit;
    collect(Collective::all_gather, visit.group, level);
  }
  void open_shard(GroupId group) {
    if (schedule_.shards.empty()) return;
    const PoolId pool = schedule_.shard_pool_of[group];
    if (!cursor_.open(pool)) open(pool);
  }
  void finish_pass(const std::string& pass) {
    for (PoolId pool : schedule_.pools.ids())
      if (const Visit* next = cursor_.upcoming(pool);
          next && schedule_.pools[pool].residency == Residency::transient)
        fault(next->group, "no access of " + pass + " opens its next visit");
  }
  /// Opens what was not used since the last publication, if it is staged; then gathers, without overlap.
  void publish() {
    for (const Visit& visit : schedule_.resident)
      if (visit.staged == StagedAt::publication || slot_of(visit)) start(visit);
    for (const Visit& visit : schedule_.shards)
      if (visit.staged == StagedAt::publication || slot_of(visit)) open_shard(visit.group);
    for (std::size_t i = 0; i < schedule_.amaxes.size(); ++i) collectives.push_back({Collective::all_reduce_max, {}});
    if (of_.rules.gather == Overlap::on) return;
    for (const Visit& visit : schedule_.resident)
      for (Level level : {Level::across, Level::inside}) collect(Collective::all_gather, visit.group, level);
    for (const Visit& visit : schedule_.shards)
      if (!schedule_.resides(visit.group)) collect(Collective::all_gather, visit.group, Level::across);
  }

  // Gradients.
  void write(ParamId param) {
    const GroupId group = of_.layout.group_of(param);
    if (!rounds_.expects(param)) return fault(group, "no round expects a contribution");
    const Reduction& reduction = *rounds_.now(group);
    const Reduction*& holder = holder_[static_cast<std::size_t>(reduction.slot)];
    if (!rounds_.written(group)) {
      for (const Reduction* const other : holder_)
        if (other && meet(schedule_, of_.layout, *other, reduction))
          fault(group, "writes to gradients' memory in which another group accumulates");
      holder = &reduction;
      open_before(reduction);
    }
    if (!rounds_.completes(param) || reduction.begin != BeginAt::last_write) return;
    holder = nullptr;
    reduce(reduction);
  }
  void open_before(const Reduction& reduction) {
    if (reduction.after == VisitId{}) return;
    const Visit& visit = schedule_.resident[reduction.after];
    if (visit.group != reduction.group) fault(reduction.group, "another group's bf16 is staged in its gradients");
    if (cursor_.upcoming(visit.pool) == &visit) open(visit.pool);
  }
  void reduce(const Reduction& reduction) {
    if (&reduction != &schedule_.reductions[reduced_])
      fault(reduction.group, "its reduction starts at another place in the list");
    reduced_ = static_cast<std::size_t>(&reduction - schedule_.reductions.data()) + 1;
    rounds_.next(reduction.group);
    collect(Collective::all_to_all, reduction.group, Level::inside);
  }
  void finish_reductions() {
    while (reduced_ < schedule_.reductions.size()) {
      const Reduction& reduction = schedule_.reductions[reduced_];
      if (reduction.begin != BeginAt::end_of_step) return fault(reduction.group, "a round is never complete");
      open_before(reduction);
      reduce(reduction);
    }
  }

  const SyncSchedule& schedule_;
  const SyncInputs& of_;
  PassCursor cursor_;
  IndexedBy<PoolId, std::vector<const Visit*>> slots_;  ///< the visit in each
  std::vector<const Reduction*> holder_;                ///< of each gradient slot: what accumulates in it
  Rounds rounds_;
  std::size_t reduced_ = 0;  ///< number of reductions that have started
};

/// Rows that contradict each other, whatever a step does.
std::vector<std::string> contradictions(const SyncSchedule& schedule, const SyncInputs& of) {
  std::vector<std::string> faults;
  const auto within = [](int number, auto size) { return number >= -1 && number < static_cast<std::int64_t>(size); };
  for (const Visits* visits : {&schedule.shards, &schedule.resident, &schedule.training, &schedule.evaluation,
                               &schedule.inspection})
    for (const Visit& visit : *visits) {
      if (!within(visit.next.value, visits->size()) || !within(visit.prefetch.value, visits->size()))
        faults.push_back("a visit names one that is not in its list");
      const IndexedBy<GroupId, PoolId>& pool_of =
          visits == &schedule.shards ? schedule.shard_pool_of : schedule.pool_of;
      if (pool_of[visit.group] != visit.pool || visit.slot < 0 || visit.slot >= schedule.pools[visit.pool].slots)
        faults.push_back("group " + std::to_string(visit.group.value) + ": a visit is in another pool's slot");
    }
  for (const Reduction& one : schedule.reductions)
    if (one.slot < 0 || !within(one.slot, schedule.gradient_slots.size()) ||
        !within(one.after.value, schedule.resident.size()))
      faults.push_back("a reduction names a slot or visit that is not there");
  for (GroupId group : of.layout.groups().ids()) {
    const auto fault = [&](const std::string& what) {
      faults.push_back("group " + std::to_string(group.value) + ": " + what);
    };
    if (schedule.resides(group) && std::ranges::count(schedule.resident, group, &Visit::group) != 1)
      fault("is resident, and has not one resident visit");
    if (of.ranks.sharding.size > 1 && std::ranges::count(schedule.shards, group, &Visit::group) != 1)
      fault("has not one visit of its shard");
    int rounds = 0, micro_batches = 0;
    for (const Reduction& one : schedule.reductions) {
      if (one.group != group) continue;
      if (one.round != rounds++) fault("its rounds are not numbered in order");
      if ((one.sum == SumInto::assign) != (one.round == 0)) fault("its first round assigns, and only that one");
      if (one.round > 0 && schedule.gradient_slots[static_cast<std::size_t>(one.slot)].holds_shard())
        fault("its shard lies in its slot, which a second round would overwrite");
      micro_batches += one.micro_batches;
    }
    const bool written = std::ranges::any_of(
        of.usage.contributions, [&](const Contribution& one) { return of.layout.group_of(one.param) == group; });
    if (micro_batches != (written ? of.rules.micro_batches : 0)) fault("its rounds do not add up to a step");
    if (of.rules.micro_batches > 0 && rounds == 0) fault("is never reduced");
  }
  return faults;
}

}  // namespace

std::vector<std::string> check(const SyncSchedule& schedule, const SyncInputs& of) {
  std::vector<std::string> faults = contradictions(schedule, of);
  if (!faults.empty()) return faults;
  Rehearsal rehearsal(schedule, of);
  rehearsal.evaluation();
  rehearsal.step();
  return rehearsal.faults;
}

std::vector<PlannedCollective> collectives_of(const SyncSchedule& schedule, const SyncInputs& of) {
  Rehearsal rehearsal(schedule, of);
  rehearsal.step();
  return rehearsal.collectives;
}

}  // namespace tessera
