#include "core/params/param_sync.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include "core/optim/clip.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/contract.hpp"
#include "tests/support/delaying.hpp"
#include "tests/support/mpi.hpp"

namespace tessera {
namespace {

constexpr int micro_batches = 2;
constexpr std::uint64_t seed = 99;

using test::mpi;

/// Parameters of odd sizes, an expert stack of which this rank holds its part, and one ("unused") that no forward
/// touches.
ParamRegistry odd_parameters(const RankIn& experts) {
  ParamRegistry registry;
  const auto add = [&](const std::string& name, Shape shape, int members, Role role) {
    Canonical canonical{name, shape, 0};
    if (members > 1)
      canonical = {name, {members * experts.size, shape[0], shape[1]}, experts.rank * members * shape.elements()};
    registry.add({name, shape, members, role, {Start::Kind::normal, 0.5}, canonical});
  };
  add("a", {17, 5}, 1, Role::matrix);
  add("a.bias", {17}, 1, Role::bias);
  add("experts", {7, 9}, 3, Role::expert);
  add("unused", {33}, 1, Role::norm);
  add("b", {300, 11}, 1, Role::matrix);
  add("c", {1}, 1, Role::bias);
  return registry;
}

Usage usage_of(const ParamRegistry& registry) {
  Usage usage;
  for (int p = 0; p < registry.size(); ++p) {
    const bool used = registry[{p}].name != "unused";
    if (!used) continue;
    usage.training.push_back({{p}});
    usage.contributions.push_back({{p}, 0});
  }
  return usage;
}

/// A rank's contribution to element i of parameter p in one micro-batch.
float contribution(int rank, int micro, int p, std::int64_t i) {
  std::mt19937 random(static_cast<unsigned>(rank * 7919 + micro * 104729 + p * 1299709 + i));
  return std::ldexp(static_cast<float>(random()) - 2147483648.0f, static_cast<int>(random() % 40) - 50);
}

struct Bench {
  /// A bench with expert groups of `expert` ranks.
  Bench(std::int64_t bucket_elements, const SyncRules& sync_rules, int delay_us = 0, int expert = 1)
      : rules(sync_rules),
        ranks(mpi().ranks(expert)),
        registry(odd_parameters(ranks.experts)),
        layout(ParamLayout::build(registry, {ranks.world.size, ranks.expert_data.size, bucket_elements})),
        usage(usage_of(registry)),
        mesh(mpi().mesh(device, ranks, std::chrono::seconds(300))),
        masters(device, layout, ranks),
        sync(device, registry, layout, schedule_of({usage, registry, layout, ranks, rules}), masters, mesh, rules) {
    mesh.wrap([&](std::unique_ptr<Communicator> one) {
      return test::contract(test::delaying(std::move(one), seed, delay_us));
    });
  }

  void poison_gradients() {
    for (BucketId b : layout.buckets().ids())
      fill(device.compute(), sync.gradients(b), std::numeric_limits<double>::quiet_NaN());
  }

  Accumulating backward() {
    Stream& stream = device.compute();
    Accumulating sum = sync.accumulate();
    for (int m = 0; m < rules.micro_batches; ++m)
      for (int p = registry.size() - 1; p >= 0; --p) {
        if (std::ranges::count(usage.contributions, ParamId{p}, &Contribution::param) == 0) continue;
        const Gradient slot = sum.slot({p});
        for (int e = 0; e < slot.members; ++e) add(slot.member(e), m, p, e);
        sum.written(stream, {p});
      }
    return sum;
  }

  void add(const Gradient& slot, int m, int p, int e) {
    const std::int64_t n = slot.sum.elements();
    std::vector<float> values(static_cast<std::size_t>(n));
    if (slot.beta != 0) device.download(device.compute(), values.data(), slot.sum);
    for (std::int64_t i = 0; i < n; ++i) {
      float& value = values[static_cast<std::size_t>(i)];
      value = (slot.beta != 0 ? slot.beta * value : 0.0f) + contribution(mpi().rank(), m, p, e * n + i);
    }
    device.upload(device.compute(), slot.sum, values.data());
  }

  template <class T> std::vector<T> values(const Tensor& t) {
    std::vector<T> v(static_cast<std::size_t>(t.elements()));
    device.download(device.compute(), v.data(), t);
    return v;
  }

  SyncRules rules;
  Device device;
  Ranks ranks;
  ParamRegistry registry;
  ParamLayout layout;
  Usage usage;
  Mesh mesh;
  std::unique_ptr<Control> control = mpi().control(std::chrono::seconds(300));
  Masters masters;
  ParamSync sync;
};

/// The ranks that share a parameter; experts: those of equal position in their expert groups.
std::vector<int> sharers(const Bench& bench, int p) {
  const bool expert = bench.registry[{p}].role == Role::expert;
  std::vector<int> all;
  for (int r = 0; r < mpi().size(); ++r)
    if (!expert || (r - mpi().rank()) % bench.ranks.experts.size == 0) all.push_back(r);
  return all;
}

/// Expected sum in rank order, ((r0 + r1) + r2) + ..., of each rank's (m0 + m1) + ...
float expected_sum(const Bench& bench, int p, std::int64_t i) {
  float total = 0;
  bool first = true;
  for (int r : sharers(bench, p)) {
    float mine = contribution(r, 0, p, i);
    for (int m = 1; m < bench.rules.micro_batches; ++m) mine = mine + contribution(r, m, p, i);
    total = std::exchange(first, false) ? mine : total + mine;
  }
  return total;
}

void expect_sum(const Bench& bench, float got, int p, std::int64_t i) {
  const float expected = expected_sum(bench, p, i);
  ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(expected))
      << "parameter " << p << ", " << i;
}

void expect_sums(Bench& bench, const Reduced& reduced) {
  std::int64_t seen = 0;
  for (BucketId b : bench.layout.buckets().ids()) {
    const std::vector<float> shard = bench.values<float>(reduced.shard(b));
    std::vector<bool> written(shard.size(), false);
    for (const ShardRange& piece : bench.layout.shard_ranges(b, bench.ranks)) {
      const ParamSpec& spec = bench.registry[piece.param];
      for (std::int64_t i = 0; i < piece.count.value; ++i) {
        const auto at = static_cast<std::size_t>(piece.shard.value + i);
        written[at] = true;
        const std::int64_t element = piece.member * spec.member_elements() + piece.begin.value + i;
        const int p = piece.param.value;
        if (spec.name == "unused") {
          ASSERT_EQ(shard[at], 0.0f) << element;
        } else {
          expect_sum(bench, shard[at], p, element);
        }
        ++seen;
      }
    }
    for (std::size_t i = 0; i < shard.size(); ++i)
      ASSERT_TRUE(written[i] || shard[i] == 0.0f) << "gap or padding of bucket " << b.value;
  }
  EXPECT_GT(seen, 0);
}

std::vector<SyncRules> all_rules() {
  std::vector<SyncRules> rules;
  for (Overlap gather : {Overlap::off, Overlap::on})
    for (Overlap reduce : {Overlap::off, Overlap::on}) rules.push_back({gather, reduce, micro_batches});
  return rules;
}

/// Sizes of expert groups: none, of two ranks, of all.
std::set<int> expert_groups() {
  std::set<int> sizes{1, mpi().size()};
  if (mpi().size() % 2 == 0) sizes.insert(2);
  return sizes;
}

TEST(ParamSync, ReducesOverPoisonedMemory) {
  for (const SyncRules& rules : all_rules())
    for (int expert : expert_groups())
      for (std::int64_t bucket : {1, 1000, 1 << 20}) {
        Bench bench(bucket, rules, 200, expert);
        bench.poison_gradients();
        Reduced reduced = bench.backward().reduce(bench.device.compute());
        expect_sums(bench, reduced);
        if (const CollectiveLog* log = bench.mesh.log()) log->compare(*bench.control);
      }
}

/// Expects that the operand of a weight is the master drawn with `number`, rounded.
void expect_drawn(Bench& bench, ParamId id, std::uint64_t number) {
  Stream& stream = bench.device.compute();
  const ParamSpec& spec = bench.registry[id];
  const Use weight = bench.sync.operand(stream, id, Side::rowwise);
  const Tensor drawn = bench.device.allocate(Category::staging, DType::f32, {spec.member_elements() * spec.members});
  fill_normal(stream, drawn, random_key(number, "init", spec.canonical.name, 0),
              static_cast<std::uint64_t>(spec.canonical.first), spec.start.deviation);
  const std::vector<float> expected = bench.values<float>(drawn);
  for (int m = 0; m < spec.members; ++m) {
    const std::vector<bf16> held = bench.values<bf16>(weight->member(m).data);
    ASSERT_FALSE(held.empty());
    for (std::size_t i = 0; i < held.size(); ++i)
      ASSERT_EQ(held[i].bits, bf16(expected[static_cast<std::size_t>(m) * held.size() + i]).bits) << spec.name;
  }
}

TEST(ParamSync, EveryRankHoldsQuantizedMastersAfterPublish) {
  for (const SyncRules& rules : all_rules())
    for (int expert : expert_groups())
      for (std::int64_t bucket : {1, 1000, 1 << 20}) {
        Bench bench(bucket, rules, 200, expert);
        Stream& stream = bench.device.compute();
        for (std::uint64_t number : {seed, seed + 1, seed + 2}) {  // masters change, as in a step
          bench.sync.publish(stream,
                             bench.masters.initialise(stream, bench.registry, bench.layout, bench.ranks, number));
          for (int p = 0; p < bench.registry.size(); ++p) expect_drawn(bench, {p}, number);
        }
      }
}

TEST(ParamSync, OverlapBeginsCollectivesBeforeTheyAreAwaited) {
  Bench bench(1, {Overlap::on, Overlap::on, micro_batches});
  Stream& stream = bench.device.compute();
  bench.sync.publish(stream, bench.masters.initialise(stream, bench.registry, bench.layout, bench.ranks, seed));
  const Tensor work = bench.device.allocate(Category::staging, DType::f32, {1});
  for (int p = 0; p < bench.registry.size(); ++p) {
    const Use use = bench.sync.operand(stream, {p}, Side::rowwise);
    clear(stream, work);  // stands for a layer's kernel
  }
  EXPECT_EQ(bench.sync.overlapped().gathers >= 3, mpi().size() > 1);
}

TEST(ParamSync, ADroppedStepMayBeDoneAgain) {
  Bench bench(1000, {Overlap::on, Overlap::on, micro_batches}, 200);
  { Accumulating dropped = bench.backward(); }
  for (GroupId g : bench.layout.groups().ids())
    EXPECT_EQ(bench.sync.gradient_state(g), GradientState::empty);
  Reduced reduced = bench.backward().reduce(bench.device.compute());
  expect_sums(bench, reduced);
}

TEST(ParamSync, AStepMayBeDoneAgainAfterItsReduction) {
  Bench bench(1000, {Overlap::on, Overlap::on, micro_batches}, 200);
  Stream& stream = bench.device.compute();
  const auto expect_empty = [&] {
    for (GroupId g : bench.layout.groups().ids())
      EXPECT_EQ(bench.sync.gradient_state(g), GradientState::empty);
  };
  { const Reduced dropped = bench.backward().reduce(stream); }
  expect_empty();
  { const Clipped dropped = bench.backward().reduce(stream).clipped(stream, nullptr); }
  expect_empty();
  expect_sums(bench, bench.backward().reduce(stream));
}

TEST(ParamSync, RefusesASecondStepBeforeTheFirstIsDone) {
  Bench bench(1000, {Overlap::off, Overlap::off, micro_batches});
  const Reduced reduced = bench.backward().reduce(bench.device.compute());
  EXPECT_EQ(reduced.buckets(), bench.layout.buckets().size());
  Accumulating again = bench.sync.accumulate();
  EXPECT_THROW(again.slot({0}), StateError);
}

TEST(ParamSync, ATokenThatWasMovedFromIsRefused) {
  Bench bench(1000, {Overlap::off, Overlap::off, micro_batches});
  Accumulating first = bench.sync.accumulate();
  Accumulating second = std::move(first);
  EXPECT_THROW(first.slot({0}), StateError);  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(second.slot({0}).beta, 0.0f);
}

}  // namespace
}  // namespace tessera
