#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <optional>
#include <random>

#include "core/params/param_sync.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/formats/registry.hpp"
#include "tests/support/contract.hpp"
#include "tests/support/delaying.hpp"
#include "tests/support/held_weights.hpp"
#include "tests/support/mpi.hpp"
#include "tests/support/odd_schedules.hpp"

/// Steps with random disturbances and delays, legal and illegal, compared with the schedule that ParamSync executes.
/// Compared are the collectives of a step that nothing disturbs, the states of groups, and the values of every operand
/// and sum.
namespace tessera {
namespace {

using test::mpi;

/// How weights are held and cut, and what is changed in the schedule.
struct Way {
  WeightRules weights = {};
  GatherCuts cuts = GatherCuts::flat;
  std::int64_t bucket_elements = 1;
  GatherUnit unit = GatherUnit::bucket;
  FormatId codes = formats::id_of<formats::Fp8Block>;
  std::function<void(SyncSchedule&)> change = [](SyncSchedule&) {};
};

/// Parameters of odd sizes where their format takes them, an expert stack, and one ("unused") that no pass touches.
/// Matrices have another format than the rest, so that the last buckets of both form groups of several uneven buckets.
ParamRegistry odd_parameters(FormatId codes) {
  ParamRegistry registry(TreatmentRules{{.weight = {codes, codes}}});
  const bool odd = codes == formats::id_of<formats::Fp8Block>;
  const auto add = [&](const std::string& name, Shape shape, int members, Role role) {
    const Shape canonical = members > 1 ? Shape{members, shape[0], shape[1]} : shape;
    registry.add({name, shape, members, role, {Start::Kind::normal, 0.5}, {name, canonical, 0}});
  };
  {
    const ParamRegistry::InBlock block(registry, 0);
    add("a", odd ? Shape{17, 5} : Shape{32, 64}, 1, Role::matrix);
    add("a.bias", {17}, 1, Role::bias);
    registry.begin_module();
    add("experts", odd ? Shape{7, 9} : Shape{64, 32}, 3, Role::expert);
    add("unused", {33}, 1, Role::norm);
  }
  const ParamRegistry::InBlock block(registry, 1);
  add("b", odd ? Shape{300, 11} : Shape{320, 32}, 1, Role::matrix);
  registry.begin_module();
  add("c", {1}, 1, Role::bias);
  return registry;
}

/// A forward in another order than registration, so that prefetch does not follow the numbers of groups, and its
/// backward. One gradient gets contributions late, and early: before its weight has been read.
Usage usage() {
  Usage usage;
  for (int p : {0, 4, 1, 2, 5}) usage.training.push_back({{p}, Side::rowwise, Half::forward});
  for (int p : {5, 2, 4, 1, 0}) usage.training.push_back({{p}, Side::columnwise, Half::backward});
  for (int p : {0, 4, 1, 2, 5}) usage.evaluation.push_back({{p}});
  usage.contributions = {{{4}, 0}, {{5}, 6}, {{2}, 7}, {{2}, 7}, {{4}, 8}, {{1}, 9}, {{0}, 10}};
  return usage;
}

float contribution(int rank, ParamId param, int number, std::int64_t i) {
  const auto drawn = mix64(static_cast<std::uint64_t>(rank * 7919 + number * 104729 + param.value * 1299709 + i));
  return static_cast<float>(drawn >> 32) - 2147483648.0f;
}

/// What happens to a step beside what it asks for.
enum class Event : std::uint8_t {
  nothing, evaluation, half_an_evaluation, settle, inspection, drop, publication_in_use, update_in_use, dropped_update,
  count
};

class Walk {
 public:
  Walk(const Way& way, const SyncRules& rules, unsigned seed)
      : rules_(rules),
        registry_(odd_parameters(way.codes)),
        layout_(ParamLayout::build(registry_, {mpi().size(), mpi().size(), way.bucket_elements,
                                               OwnerKind::element_sharded, way.cuts, way.unit})),
        mesh_(mpi().mesh(device_, mpi().ranks(), std::chrono::seconds(300))),
        schedule_(schedule_of(inputs())),
        random_(seed) {
    mesh_.wrap([&](std::unique_ptr<Communicator> one) {
      return recording(test::contract(test::delaying(std::move(one), seed, 100)), records_);
    });
    way.change(schedule_);
    masters_.emplace(device_, layout_, mesh_.ranks());
    sync_.emplace(device_, registry_, layout_, schedule_, *masters_, mesh_, rules_);
    rounds_.emplace(schedule_, layout_);
    EXPECT_EQ(check(schedule_, inputs()), std::vector<std::string>());
    publish();
  }

  void step() {
    event_ = static_cast<Event>(random_() % (static_cast<unsigned>(Event::count) + 3));
    if (event_ >= Event::count) event_ = Event::nothing;  // as often as four others
    before();
    if (event_ == Event::inspection) inspect();
    for (bool whole = false; !whole;) {
      rounds_->restart();
      numbers_ = IndexedBy<ParamId, int>(registry_.size(), 0);
      Accumulating sum = sync_->accumulate();
      whole = accumulate(sum);
      if (whole) finish(std::move(sum));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  int refused() const { return refused_; }
  /// Number of steps that nothing disturbed.
  int compared() const { return compared_; }

 private:
  SyncInputs inputs() const { return {usage_, registry_, layout_, mesh_.ranks(), rules_}; }
  Stream& stream() { return device_.compute(); }
  GroupId group_of(ParamId param) const { return layout_.group_of(param); }
  bool resides(ParamId param) const { return schedule_.resides(group_of(param)); }
  template <class F> void expect_refused(const F& call) {
    EXPECT_THROW(call(), Error);
    ++refused_;
  }

  /// Expects the states that gradients have by the schedule's rounds.
  void expect_gradients() {
    for (GroupId group : layout_.groups().ids()) {
      const Reduction* const now = rounds_->now(group);
      const GradientState wanted = now && written(group) ? GradientState::accumulating
                                   : !now || now->round > 0 ? GradientState::reducing
                                                            : GradientState::empty;
      ASSERT_EQ(sync_->gradient_state(group), wanted) << "group " << group.value;
    }
  }
  bool written(GroupId group) const { return rounds_->written(group); }
  void expect_weights(GroupId group, WeightState state) {
    ASSERT_EQ(sync_->weight_state(group), state) << "group " << group.value;
  }

  // Before the step.
  void before() {
    if (event_ == Event::settle) sync_->unshard_all(stream());
    if (event_ != Event::evaluation && event_ != Event::half_an_evaluation) return;
    const Forward pass = sync_->forward(stream());
    for (const Visit& visit : schedule_.resident) expect_weights(visit.group, WeightState::ready);
    const std::size_t many = event_ == Event::evaluation ? usage_.evaluation.size() : usage_.evaluation.size() / 2;
    cursor_.emplace(schedule_.pools.size()).begin(schedule_.evaluation);
    for (std::size_t i = 0; i < many; ++i) (void)read(usage_.evaluation[i]);
  }
  void inspect() {
    std::size_t planes = 0, stored = 0;
    sync_->inspect(stream(), [&](const Plane&) { ++planes; });
    sync_->visit_planes([&](const Plane&) { ++stored; });
    EXPECT_GE(planes, stored) << "every array is seen";
  }

  // Weights.
  bool open_serves(const Access& access) const {
    const Visit* const open = cursor_->open(schedule_.pool_of[group_of(access.param)]);
    return open && open->serves(group_of(access.param), payload_of(access, layout_, rules_.weights));
  }
  bool next_serves(const Access& access) const {
    const Visit* const next = cursor_->upcoming(schedule_.pool_of[group_of(access.param)]);
    return next && next->serves(group_of(access.param), payload_of(access, layout_, rules_.weights));
  }
  Use read(const Access& access) {
    Use use = sync_->operand(stream(), access.param, access.side);
    if (!resides(access.param) && !open_serves(access)) cursor_->advance(schedule_.pool_of[group_of(access.param)]);
    expect_weights(group_of(access.param), WeightState::ready);
    const ParamSpec& spec = registry_[access.param];
    test::expect_quantized(device_, *use, spec, test::drawn(device_, spec, number_), access.side, spec.name);
    return use;
  }
  /// An access that the usage does not have here.
  void read_out_of_turn() {
    const Access access{{static_cast<int>(random_() % static_cast<unsigned>(registry_.size()))}};
    if (resides(access.param) ? event_ != Event::nothing : open_serves(access)) (void)read(access);
    else if (!resides(access.param) && !next_serves(access)) expect_refused([&] { (void)read(access); });
  }
  /// While an operand of a transient visit is in use, the next visit of its pool cannot be opened.
  void try_next_in_use(const Access& access, const Access& next) {
    const auto pool_of = [&](const Access& one) { return schedule_.pool_of[group_of(one.param)]; };
    if (!resides(access.param) && pool_of(access) == pool_of(next) && !open_serves(next))
      expect_refused([&] { (void)sync_->operand(stream(), next.param, next.side); });
  }

  // Gradients.
  void contribute(Accumulating& sum, ParamId param) {
    const bool first = !rounds_->written(param);
    if (random_() % 4 == 0 && sync_->gradient_state(group_of(param)) != GradientState::accumulating)
      expect_refused([&] { sum.written(stream(), param); });  // before its slot
    const Gradient slot = sum.slot(param);
    ASSERT_EQ(slot.beta, first ? 0.0f : 1.0f);
    const std::int64_t n = slot.sum.elements();
    const int number = numbers_[param]++;
    for (int m = 0; m < slot.members; ++m) {
      const Tensor to = slot.member(m).sum.view({n});
      std::vector<float> values = test::on_host<float>(device_, to);
      for (std::int64_t i = 0; i < n; ++i) {
        float& value = values[static_cast<std::size_t>(i)];
        value = (first ? 0.0f : value) + contribution(mpi().rank(), param, number, m * n + i);
      }
      device_.upload(stream(), to, values.data());
    }
    const Reduction& reduction = *rounds_->now(group_of(param));
    if (rounds_->completes(param) && reduction.begin == BeginAt::last_write) rounds_->next(group_of(param));
    sum.written(stream(), param);
    expect_gradients();
    const Reduction* const now = rounds_->now(group_of(param));
    if (!now) expect_refused([&] { sum.slot(param); });
  }
  /// Returns whether the step goes on.
  bool accumulate(Accumulating& sum) {
    cursor_.emplace(schedule_.pools.size()).begin(schedule_.training);
    for (int i = 0; i < 3 && event_ != Event::nothing; ++i) read_out_of_turn();
    for (int m = 0; m < rules_.micro_batches; ++m) {
      auto next = usage_.contributions.begin();
      for (std::size_t i = 0; i <= usage_.training.size(); ++i) {
        for (; next != usage_.contributions.end() && next->accesses <= static_cast<int>(i); ++next) {
          contribute(sum, next->param);
          if (::testing::Test::HasFatalFailure()) return true;
        }
        if (i == usage_.training.size()) break;
        const Access& access = usage_.training[i];
        const Use use = read(access);
        if (::testing::Test::HasFatalFailure()) return true;
        if (i + 1 < usage_.training.size()) try_next_in_use(access, usage_.training[i + 1]);
        if (random_() % 8 == 0) read_out_of_turn();
        if (m + 1 == rules_.micro_batches && i == 7 && disturbed_in_the_middle()) return false;
      }
    }
    return true;
  }
  bool disturbed_in_the_middle() {
    if (event_ != Event::drop && event_ != Event::publication_in_use) return false;
    if (event_ == Event::publication_in_use)  // an operand is in use, or gradients in whose memory it would be staged
      expect_refused([&] { sync_->publish(stream(), initialised(number_)); });
    event_ = Event::settle;  // once
    return true;
  }

  // The end of a step.
  void finish(Accumulating&& sum) {
    Reduced reduced = std::move(sum).reduce(stream());
    for (GroupId group : layout_.groups().ids())
      ASSERT_EQ(sync_->gradient_state(group), GradientState::reduced) << "group " << group.value;
    expect_sums(reduced);
    const ParamId first = usage_.training.front().param;
    if (event_ == Event::update_in_use && resides(first)) {
      const Use use = read({first});
      expect_refused([&] { (void)std::move(reduced).clipped(stream(), nullptr); });
    }
    Clipped clipped = std::move(reduced).clipped(stream(), nullptr);
    for (GroupId group : layout_.groups().ids()) expect_weights(group, WeightState::stale);
    if (event_ == Event::dropped_update) {
      { const Clipped dropped = std::move(clipped); }
      return publish();
    }
    Updated updated = std::move(clipped).updated();
    for (BucketId b : layout_.buckets().ids())
      fill(stream(), sync_->gradients(b), std::numeric_limits<double>::quiet_NaN());
    rounds_->restart();
    expect_gradients();
    (void)initialised(++number_);
    publish(std::move(updated));
  }
  void expect_sums(const Reduced& reduced) {
    for (BucketId b : layout_.buckets().ids()) {
      const std::vector<float> shard = test::on_host<float>(device_, reduced.shard(b));
      std::vector<float> wanted(shard.size(), 0.0f);  // zero in gaps, padding and unwritten parameters
      for (const ShardRange& piece : layout_.shard_ranges(b, mesh_.ranks()))
        for (std::int64_t i = 0; i < piece.count.value; ++i)
          wanted[static_cast<std::size_t>(piece.shard.value + i)] = sum_of(
              piece.param, piece.member * registry_[piece.param].member_elements() + piece.begin.value + i);
      for (std::size_t i = 0; i < shard.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(shard[i]), std::bit_cast<std::uint32_t>(wanted[i])) << b.value;
    }
  }
  /// The sum by the schedule: contributions of a round added up on each rank, then rank after rank and round
  /// after round, without idle ranks.
  float sum_of(ParamId param, std::int64_t i) const {
    float total = 0;
    int first = 0;
    for (const Reduction& one : schedule_.reductions) {
      if (one.group != group_of(param)) continue;
      const int last = first + one.micro_batches * schedule_.contributions[param];
      for (int r = 0; r < mpi().size() - one.idle; ++r) {
        float mine = 0;
        for (int n = first; n < last; ++n)
          mine = n == first ? contribution(r, param, n, i) : mine + contribution(r, param, n, i);
        total = r == 0 && one.sum == SumInto::assign ? mine : total + mine;
      }
      first = last;
    }
    return total;
  }

  Updated initialised(std::uint64_t number) {
    return masters_->initialise(stream(), registry_, layout_, mesh_.ranks(), number);
  }
  void publish() { publish(initialised(++number_)); }
  void publish(Updated&& updated) {
    sync_->publish(stream(), std::move(updated));
    if (event_ == Event::nothing) expect_collectives();
    records_.clear();
    for (const Visit& visit : schedule_.resident) {
      const bool later = visit.staged == StagedAt::gather;
      expect_weights(visit.group, rules_.gather == Overlap::off ? WeightState::ready
                                  : later                       ? WeightState::stale
                                                                : WeightState::staged);
    }
  }
  /// Expects the collectives of the step before, in order: those of the schedule.
  void expect_collectives() {
    std::vector<PlannedCollective> made;
    for (const Record& record : records_) made.push_back({record.collective, {record.group}});
    ASSERT_EQ(made, collectives_of(schedule_, inputs()));
    ++compared_;
  }

  Device device_;
  const SyncRules rules_;
  const ParamRegistry registry_;
  const ParamLayout layout_;
  const Usage usage_ = usage();
  Mesh mesh_;
  SyncSchedule schedule_;
  std::vector<Record> records_;
  std::optional<Masters> masters_;
  std::optional<ParamSync> sync_;
  std::optional<Rounds> rounds_;
  std::optional<PassCursor> cursor_;  ///< of the pass under way
  IndexedBy<ParamId, int> numbers_;   ///< contributions to each gradient so far
  Event event_ = Event::settle;
  std::mt19937 random_;
  std::uint64_t number_ = 0;  ///< number of the masters published last
  int refused_ = 0, compared_ = 0;
};

WeightRules quantized(GatherWire wire, GatherStaging staging, Sharding sharding = Sharding::optimizer) {
  return {PrimaryWeights::quantized, wire, staging, sharding};
}

std::vector<Way> sharded_optimizers() {
  using enum GatherStaging;
  std::vector<Way> ways;
  for (const WeightRules& weights :
       {WeightRules{}, quantized(GatherWire::quantized, automatic), quantized(GatherWire::bf16, alias_grads),
        quantized(GatherWire::bf16, ring)})
    for (GatherCuts cuts : {GatherCuts::flat, GatherCuts::tile})
      for (std::int64_t elements : {1, 400, 1 << 20}) ways.push_back({weights, cuts, elements});
  return ways;
}
std::vector<Way> full_sharding(const std::function<void(SyncSchedule&)>& change) {
  std::vector<Way> ways;
  const WeightRules values{PrimaryWeights::bf16, GatherWire::automatic, GatherStaging::automatic, Sharding::full},
      codes = quantized(GatherWire::automatic, GatherStaging::automatic, Sharding::full);
  for (GatherUnit unit : {GatherUnit::block, GatherUnit::module}) {
    ways.push_back({values, GatherCuts::flat, 1, unit, formats::id_of<formats::Fp8Block>, change});
    for (FormatId format : {formats::id_of<formats::Fp8Block>, formats::id_of<formats::Mxfp8>})
      ways.push_back({codes, GatherCuts::tile, 1, unit, format, change});
  }
  return ways;
}

void walk(const std::vector<Way>& ways, int steps, const std::vector<Overlap>& gathers = {Overlap::off, Overlap::on},
          ReduceOrder order = ReduceOrder::rank) {
  const int idle = order == ReduceOrder::batch ? mpi().size() - 1 : 0;
  int refused = 0, compared = 0;
  unsigned seed = 0;
  for (const Way& way : ways)
    for (Overlap gather : gathers)
      for (Overlap reduce : {Overlap::off, Overlap::on}) {
        SCOPED_TRACE("seed " + std::to_string(++seed));
        Walk walk(way, {gather, reduce, 2, order, way.weights, idle}, seed);
        for (int i = 0; i < steps; ++i) {
          walk.step();
          if (::testing::Test::HasFatalFailure()) return;
        }
        refused += walk.refused();
        compared += walk.compared();
      }
  EXPECT_GT(refused, 50);
  EXPECT_GT(compared, 5);
}

TEST(ParamSyncModel, ShardedOptimizersFollowTheSchedule) { walk(sharded_optimizers(), 3); }
TEST(ParamSyncModel, FullShardingFollowsTheSchedule) { walk(full_sharding([](SyncSchedule&) {}), 4); }
TEST(ParamSyncModel, InTheOrderOfTheBatchRoundsFollowEachOtherWithoutIdleRanks) {
  std::vector<Way> ways = sharded_optimizers();
  std::erase_if(ways, [](const Way& way) { return way.weights.staging == GatherStaging::alias_grads; });
  walk(ways, 2, {Overlap::on}, ReduceOrder::batch);
  walk(full_sharding([](SyncSchedule&) {}), 2, {Overlap::on}, ReduceOrder::batch);
}
TEST(ParamSyncModel, SchedulesThatNoRuleMakesAreFollowedToo) {
  if (mpi().size() == 1) return;
  walk(full_sharding(test::prefetch_two_ahead), 3, {Overlap::on});
  walk(full_sharding(test::keep_one_group), 3, {Overlap::on});
}

}  // namespace
}  // namespace tessera
