#include <algorithm>
#include <utility>

#include "core/params/sync_schedule.hpp"
#include "core/params/writes.hpp"

/// check() and collectives_of(): a step by a schedule, without memory and without other ranks.
namespace tessera {
namespace {

/// A group's place in its rounds.
struct Rounds {
  std::vector<std::size_t> reductions;  ///< numbers of its reductions
  std::size_t round = 0;                ///< number of the one that is filled, or comes next
  bool writing = false;                 ///< whether its first write has been
};

class Rehearsal {
 public:
  Rehearsal(const SyncSchedule& schedule, const SyncInputs& of)
      : schedule_(schedule),
        of_(of),
        resident_of_(of.layout.groups().size()),
        stays_(static_cast<std::size_t>(schedule.resident.size())),
        cursor_(schedule.pools.size()),
        slots_(schedule.pools.size()),
        holder_(schedule.gradient_slots.size()),
        rounds_(of.layout.groups().size()),
        writes_(schedule.contributions, of.layout) {
    for (VisitId v : schedule.resident.ids()) resident_of_[schedule.resident[v].group] = v;
    for (PoolId pool : schedule.pools.ids()) slots_[pool].resize(static_cast<std::size_t>(schedule.pools[pool].slots));
    for (std::size_t i = 0; i < schedule.reductions.size(); ++i)
      rounds_[schedule.reductions[i].group].reductions.push_back(i);
  }

  /// A step that begins behind a publication, and the next publication.
  void step() {
    for (Stay& stay : stays_) stay = {};
    for (GroupId group : rounds_.ids()) begin_round(group);
    begin(schedule_.training);
    for (int m = 0; m < of_.rules.micro_batches; ++m) micro_batch();
    finish_pass("training");
    finish_reductions();
    publish();
  }

  void evaluation() {
    begin(schedule_.evaluation);
    for (const Access& access : of_.usage.evaluation) serve(access);
    finish_pass("evaluation");
  }

  std::vector<std::string> faults;
  std::vector<PlannedCollective> collectives;

 private:
  struct Stay {
    bool started = false, opened = false;
  };

  static std::string text(GroupId group) { return "group " + std::to_string(group.value); }
  void fault(GroupId group, const std::string& what) { faults.push_back(text(group) + ": " + what); }

  void collect(Collective collective, GroupId group) {
    if (of_.ranks.of(of_.layout.groups()[group].processes).size > 1) collectives.push_back({collective, group});
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
  void begin(const Visits& pass) {
    for (PoolId pool : schedule_.pools.ids()) cursor_.clear(pool);
    cursor_.begin(pass);
  }
  void serve(const Access& access) {
    const GroupId group = of_.layout.group_of(access.param);
    if (schedule_.resides(group)) return open_resident(resident_of_[group]);
    const PoolId pool = schedule_.pool_of[group];
    const Sides needed = payload_of(access, of_.layout, of_.rules.weights);
    if (const Visit* open = cursor_.open(pool); open && open->serves(group, needed)) return;
    const Visit* visit = cursor_.upcoming(pool);
    if (!visit || !visit->serves(group, needed)) return fault(group, "no visit serves an access");
    if (const Visit* open = cursor_.open(pool)) slot_of(*open) = nullptr;
    start(*visit);
    if (const Visit* prefetch = cursor_.at(pool, visit->prefetch)) start(*prefetch);
    cursor_.advance(pool);
  }
  const Visit*& slot_of(const Visit& visit) { return slots_[visit.pool][static_cast<std::size_t>(visit.slot)]; }
  void start(const Visit& visit) {
    if (schedule_.pool_of[visit.group] != visit.pool || visit.slot >= schedule_.pools[visit.pool].slots)
      return fault(visit.group, "a visit is in another pool's slot");
    const Visit*& slot = slot_of(visit);
    if (slot == &visit) return;
    if (slot) fault(visit.group, "a gather starts into a slot that is in use");
    slot = &visit;
    collect(Collective::all_gather, visit.group);
  }
  void finish_pass(const std::string& pass) {
    for (PoolId pool : schedule_.pools.ids()) {
      if (cursor_.upcoming(pool))
        fault(cursor_.upcoming(pool)->group, "no access of " + pass + " opens its next visit");
      std::ranges::fill(slots_[pool], nullptr);
    }
  }

  void start_resident(VisitId id) {
    Stay& stay = stays_[static_cast<std::size_t>(id.value)];
    if (!std::exchange(stay.started, true)) collect(Collective::all_gather, schedule_.resident[id].group);
  }
  void open_resident(VisitId id) {
    Stay& stay = stays_[static_cast<std::size_t>(id.value)];
    if (of_.rules.gather == Overlap::off || std::exchange(stay.opened, true)) return;  // off: by the publication
    start_resident(id);
    if (const VisitId prefetch = schedule_.resident[id].prefetch; prefetch != VisitId{}) start_resident(prefetch);
  }
  /// Opens what was not used since the last publication, if it is staged; then gathers, without overlap.
  void publish() {
    for (VisitId id : schedule_.resident.ids()) {
      const bool staged = schedule_.resident[id].staged == StagedAt::publication;
      if (of_.rules.gather == Overlap::on && (staged || stays_[static_cast<std::size_t>(id.value)].started))
        start_resident(id);
    }
    for (std::size_t i = 0; i < schedule_.amaxes.size(); ++i) collectives.push_back({Collective::all_reduce_max, {}});
    if (of_.rules.gather == Overlap::off)
      for (VisitId id : schedule_.resident.ids()) start_resident(id);
  }

  // Gradients.
  void begin_round(GroupId group) {
    const Rounds& rounds = rounds_[group];
    const bool more = rounds.round < rounds.reductions.size();
    writes_.begin_round(group, more ? schedule_.reductions[rounds.reductions[rounds.round]].micro_batches : 0);
  }
  void write(ParamId param) {
    const GroupId group = of_.layout.group_of(param);
    Rounds& rounds = rounds_[group];
    if (!writes_.expects(param)) return fault(group, "no round expects a contribution");
    const Reduction& reduction = schedule_.reductions[rounds.reductions[rounds.round]];
    if (!std::exchange(rounds.writing, true)) first_write(reduction);
    if (writes_.completes(param) && reduction.begin == BeginAt::last_write) reduce(rounds.reductions[rounds.round]);
  }
  void first_write(const Reduction& reduction) {
    GroupId& holder = holder_[static_cast<std::size_t>(reduction.slot)];
    if (holder != GroupId{}) fault(reduction.group, "writes to a gradient slot in which another group accumulates");
    holder = reduction.group;
    open_before(reduction);
  }
  void open_before(const Reduction& reduction) {
    if (reduction.after == VisitId{}) return;
    if (schedule_.resident[reduction.after].group != reduction.group)
      fault(reduction.group, "another group's bf16 is staged in its gradients");
    open_resident(reduction.after);
  }
  void reduce(std::size_t number) {
    const Reduction& reduction = schedule_.reductions[number];
    Rounds& rounds = rounds_[reduction.group];
    if (number != reduced_) fault(reduction.group, "its reduction starts at another place in the list");
    reduced_ = number + 1;
    if (rounds.writing) holder_[static_cast<std::size_t>(reduction.slot)] = {};
    rounds.writing = false;
    ++rounds.round;
    begin_round(reduction.group);
    collect(Collective::all_to_all, reduction.group);
  }
  void finish_reductions() {
    for (; reduced_ < schedule_.reductions.size();) {
      const Reduction& reduction = schedule_.reductions[reduced_];
      if (reduction.begin != BeginAt::end_of_step) return fault(reduction.group, "a round is never complete");
      open_before(reduction);
      reduce(reduced_);
    }
  }

  const SyncSchedule& schedule_;
  const SyncInputs& of_;
  IndexedBy<GroupId, VisitId> resident_of_;
  std::vector<Stay> stays_;  ///< of resident visits
  PassCursor cursor_;
  IndexedBy<PoolId, std::vector<const Visit*>> slots_;  ///< the transient visit in each
  std::vector<GroupId> holder_;                    ///< of each gradient slot: the group that accumulates in it
  IndexedBy<GroupId, Rounds> rounds_;
  Writes writes_;
  std::size_t reduced_ = 0;  ///< number of reductions that have started
};

/// Rows that contradict each other, whatever a step does.
std::vector<std::string> contradictions(const SyncSchedule& schedule, const SyncInputs& of) {
  std::vector<std::string> faults;
  const auto within = [](int number, auto size) { return number >= -1 && number < static_cast<std::int64_t>(size); };
  for (const Visits* visits : {&schedule.resident, &schedule.training, &schedule.evaluation, &schedule.inspection})
    for (const Visit& visit : *visits)
      if (!within(visit.next.value, visits->size()) || !within(visit.prefetch.value, visits->size()))
        faults.push_back("a visit names one that is not in its list");
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
    int rounds = 0, micro_batches = 0;
    for (const Reduction& one : schedule.reductions) {
      if (one.group != group) continue;
      if (one.round != rounds++) fault("its rounds are not numbered in order");
      if ((one.sum == SumInto::assign) != (one.round == 0)) fault("its first round assigns, and only that one");
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
