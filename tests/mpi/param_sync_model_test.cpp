#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <random>

#include "core/comm/mpi.hpp"
#include "core/params/param_sync.hpp"
#include "kernels/formats/registry.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/contract.hpp"
#include "tests/support/delaying.hpp"
#include "tests/support/held_weights.hpp"

/// Model-based test of ParamSync: random legal and illegal calls with random delays. After each call the state of every
/// group is compared with a model; so are the values of every operand and every sum.
namespace tessera {
namespace {

constexpr int contributions = 2;  // contributions to each gradient in a step

Mpi& mpi() {
  static Mpi* const instance = new Mpi(nullptr, nullptr);  // outlives MPI_Finalize, so it must not be destroyed
  return *instance;
}

/// The model: which calls are legal, and the states of every group's machines after them.
struct Model {
  SyncRules rules;
  const ParamLayout& layout;
  std::vector<GroupId> order;  ///< order of first use
  IndexedBy<GroupId, WeightState> weights;
  IndexedBy<GroupId, GradientState> gradients;
  IndexedBy<ParamId, int> expected, written;
  IndexedBy<GroupId, std::ptrdiff_t> stages;  ///< number of buckets with bf16 staged for the all-gather
  int uses = 0;

  bool ring() const { return rules.weights.staging == GatherStaging::ring; }
  bool in_transit(GroupId group) const {
    return weights[group] == WeightState::staged || weights[group] == WeightState::in_flight;
  }
  /// Place in prefetch order, in which slots of the ring alternate.
  std::ptrdiff_t place(GroupId group) const { return std::ranges::find(order, group) - order.begin(); }
  std::optional<GroupId> slot_holder(GroupId group) const {
    if (!ring() || stages[group] == 0) return {};
    for (GroupId other : order)
      if (other != group && stages[other] > 0 && in_transit(other) && (place(other) - place(group)) % 2 == 0)
        return other;
    return {};
  }
  void stage(GroupId group) {
    if (weights[group] == WeightState::stale && !slot_holder(group)) weights[group] = WeightState::staged;
  }
  std::optional<GroupId> prefetched_with(GroupId group) const {
    const auto next = std::ranges::find(order, group) + 1;
    if (rules.gather == Overlap::off || next == order.end()) return {};
    return *next;
  }
  void conclude(GroupId group) {
    weights[group] = WeightState::ready;
    const std::optional<GroupId> next = prefetched_with(group);
    if (next && weights[*next] == WeightState::staged) weights[*next] = WeightState::in_flight;
  }
  void walk(GroupId group) {
    if (weights[group] == WeightState::ready) return;
    if (weights[group] == WeightState::stale)
      if (const std::optional<GroupId> holder = slot_holder(group)) conclude(*holder);
    stage(group);
    if (const std::optional<GroupId> next = prefetched_with(group)) stage(*next);
    conclude(group);
  }
  void settle() { std::ranges::for_each(order, [this](GroupId group) { walk(group); }); }
  /// Illegal while an operand is in use.
  bool outdate() {
    if (uses > 0) return false;
    for (GroupId group : order)
      if (in_transit(group)) conclude(group);
    std::ranges::fill(weights, WeightState::stale);
    return true;
  }
  /// Illegal while gradients that would hold staged bytes are in use, or an operand is in use.
  bool publish() {
    for (GroupId group : order)
      if (!ring() && stages[group] > 0 && gradients[group] != GradientState::empty) return false;
    if (!outdate()) return false;
    for (GroupId group : order) stage(group);
    if (rules.gather == Overlap::off) settle();
    return true;
  }
  /// Called before gradients are written: finishes the all-gather of bytes that are staged in them.
  void end_lease(GroupId group) {
    if (!ring() && stages[group] > 0 && gradients[group] == GradientState::empty && in_transit(group)) walk(group);
  }
  bool slot(ParamId param) {
    const GroupId group = layout.group_of(param);
    GradientState& state = gradients[group];
    end_lease(group);
    if (state == GradientState::empty) state = GradientState::accumulating;
    return state == GradientState::accumulating;
  }
  bool write(ParamId param) {
    const GroupId group = layout.group_of(param);
    if (gradients[group] != GradientState::accumulating || written[param] == expected[param]) return false;
    bool complete = ++written[param] == expected[param] && rules.reduce == Overlap::on;
    for (ParamId other : written.ids())
      complete &= layout.group_of(other) != group || written[other] == expected[other];
    if (complete) gradients[group] = GradientState::reducing;
    return true;
  }
  bool reduce() {
    if (gradients[{0}] == GradientState::reduced) return false;  // then all groups are
    for (GroupId group : gradients.ids()) end_lease(group);
    std::ranges::fill(gradients, GradientState::reduced);
    return true;
  }
  void empty() {
    std::ranges::fill(gradients, GradientState::empty);
    std::ranges::fill(written, 0);
  }
};

/// Parameters of odd sizes, an expert stack, and one ("unused") that no pass touches. Matrices have another format than
/// the rest, so that the last buckets of both form groups of several uneven buckets.
ParamRegistry odd_parameters() {
  ParamRegistry registry({.weight = {DType::bf16, formats::id_of<formats::Fp8Block>}});
  const ParamRegistry::InBlock block(registry, 0);
  const auto add = [&](const std::string& name, Shape shape, int members, Role role) {
    const Shape canonical = members > 1 ? Shape{members, shape[0], shape[1]} : shape;
    registry.add({name, shape, members, role, {Start::Kind::normal, 0.5}, {name, canonical, 0}});
  };
  add("a", {17, 5}, 1, Role::matrix);
  add("a.bias", {17}, 1, Role::bias);
  add("experts", {7, 9}, 3, Role::expert);
  add("unused", {33}, 1, Role::norm);
  add("b", {300, 11}, 1, Role::matrix);
  add("c", {1}, 1, Role::bias);
  return registry;
}

/// Usage in another order than registration, so that prefetch does not follow the numbers of groups.
Usage usage_of(const ParamRegistry& registry) {
  Usage usage;
  for (int p : {0, 4, 1, 2}) usage.training.push_back({{p}});
  usage.evaluation.push_back({{5}});
  for (int p = 0; p < registry.size(); ++p)
    if (registry[{p}].name != "unused") usage.contributions.push_back({{p}, 0});
  return usage;
}

float contribution(int rank, ParamId param, int number, std::int64_t i) {
  std::mt19937 random(static_cast<unsigned>(rank * 7919 + number * 104729 + param.value * 1299709 + i));
  return static_cast<float>(random()) - 2147483648.0f;
}

class Walk {
 public:
  Walk(const SyncRules& rules, GatherCuts cuts, std::int64_t bucket_elements, unsigned seed)
      : registry_(odd_parameters()),
        layout_(ParamLayout::build(
            registry_, {mpi().size(), mpi().size(), bucket_elements, OwnerKind::element_sharded, cuts})),
        usage_(usage_of(registry_)),
        mesh_(mpi().mesh(device_, mpi().ranks(), std::chrono::seconds(300))),
        masters_(device_, layout_, mesh_.ranks()),
        sync_(device_, registry_, layout_, schedule_of({usage_, registry_, layout_, mesh_.ranks(), rules}), masters_,
              mesh_, rules),
        model_{rules, layout_, {}, {}, {}, {}, IndexedBy<ParamId, int>(registry_.size(), 0), {}},
        random_(seed),
        updates_(seed) {
    mesh_.wrap([&](std::unique_ptr<Communicator> one) {
      return test::contract(test::delaying(std::move(one), seed, 150));
    });
    model_.weights = IndexedBy<GroupId, WeightState>(layout_.groups().size(), WeightState::stale);
    model_.gradients = IndexedBy<GroupId, GradientState>(layout_.groups().size(), GradientState::empty);
    for (int p = 0; p < registry_.size(); ++p) {
      const auto writes = std::ranges::count(usage_.contributions, ParamId{p}, &Contribution::param);
      model_.expected.add(static_cast<int>(writes) * contributions);
    }
    for (const BucketGroup& group : layout_.groups())
      model_.stages.add(std::ranges::count_if(group.buckets, [&](BucketId b) {
        return travel_of(layout_.buckets()[b].key.format, rules.weights) == Travel::bf16;
      }));
    const auto append = [this](GroupId group) {
      if (std::ranges::find(model_.order, group) == model_.order.end()) model_.order.push_back(group);
    };
    for (int p : {0, 4, 1, 2, 5, 3}) append(layout_.group_of(ParamId{p}));
    publish();  // weights are not readable before
  }

  void step() {
    const ParamId param{static_cast<int>(random_() % static_cast<unsigned>(registry_.size()))};
    switch (random_() % 12) {
      case 0: case 1: return read(param);
      case 2: case 3: case 4: case 5: return contribute(param);
      case 6: return finish_all();
      case 7: return illegal_write(param);
      case 8: return reduce();
      case 9: return end_step();
      case 10: return publish();
      default: return random_() % 2 == 0 ? drop() : settle();
    }
  }

  void expect_model() {
    for (GroupId group : layout_.groups().ids()) {
      ASSERT_EQ(sync_.weights().state(group), model_.weights[group]) << "group " << group.value;
      ASSERT_EQ(sync_.gradients().state(group), model_.gradients[group]) << "group " << group.value;
    }
  }
  int refused() const { return refused_; }
  /// Number of groups of several buckets.
  std::ptrdiff_t shared_groups() const {
    return std::ranges::count_if(layout_.groups(), [](const BucketGroup& g) { return g.buckets.size() > 1; });
  }

 private:
  Stream& stream() { return device_.compute(); }
  template <class F> void expect_refused(const F& call) {
    EXPECT_THROW(call(), Error);
    ++refused_;
  }
  Accumulating& sum() {
    if (!sum_) sum_.emplace(sync_.accumulate());
    return *sum_;
  }

  void read(ParamId param) {
    const Side side = random_() % 2 == 0 ? Side::rowwise : Side::columnwise;
    Use use = sync_.weights().operand(stream(), param, side);
    model_.walk(layout_.group_of(param));
    const ParamSpec& spec = registry_[param];
    test::expect_quantized(device_, *use, spec, test::drawn(device_, spec, number_), side, spec.name);
    if (::testing::Test::HasFatalFailure()) return;
    if (random_() % 3 > 0) return;
    kept_.emplace_back(std::move(use));
    ++model_.uses;
  }

  void contribute(ParamId param) {
    const int number = model_.written[param];
    if (!model_.slot(param)) return expect_refused([&] { sum().slot(param); });
    const Gradient slot = sum().slot(param);
    EXPECT_EQ(slot.beta, number == 0 ? 0.0f : 1.0f);
    if (number == model_.expected[param]) return expect_refused([&] { sum().written(stream(), param); });
    const std::int64_t n = slot.sum.elements();
    for (int m = 0; m < slot.members; ++m) {
      const Tensor to = slot.member(m).sum.view({n});
      std::vector<float> values = test::on_host<float>(device_, to);
      for (std::int64_t i = 0; i < n; ++i) {
        float& value = values[static_cast<std::size_t>(i)];
        value = (number == 0 ? 0.0f : value) + contribution(mpi().rank(), param, number, m * n + i);
      }
      device_.upload(stream(), to, values.data());
    }
    EXPECT_TRUE(model_.write(param));
    sum().written(stream(), param);
  }
  void finish_all() {
    for (ParamId param : model_.written.ids())
      while (model_.written[param] < model_.expected[param] &&
             model_.gradients[layout_.group_of(param)] <= GradientState::accumulating)
        contribute(param);
  }
  /// A write without its slot, or after the last contribution: must be refused.
  void illegal_write(ParamId param) {
    const bool legal = model_.gradients[layout_.group_of(param)] == GradientState::accumulating &&
                       model_.written[param] < model_.expected[param];
    if (!legal) expect_refused([&] { sum().written(stream(), param); });
  }

  void reduce() {
    Accumulating sum = std::move(this->sum());
    sum_.reset();
    if (!model_.reduce()) {
      expect_refused([&] { const Reduced again = std::move(sum).reduce(stream()); });
      return;
    }
    reduced_.emplace(std::move(sum).reduce(stream()));
    expect_sums();
  }
  void expect_sums() {
    for (BucketId b : layout_.buckets().ids()) {
      const std::vector<float> shard = test::on_host<float>(device_, reduced_->shard(b));
      std::vector<float> wanted(shard.size(), 0.0f);  // zero in gaps, padding and unwritten parameters
      for (const Piece& piece : layout_.pieces(b, mesh_.ranks()))
        for (std::int64_t i = 0; i < piece.count.value; ++i)
          wanted[static_cast<std::size_t>(piece.shard.value + i)] = sum_of(
              piece.param, piece.member * registry_[piece.param].member_elements() + piece.begin.value + i);
      for (std::size_t i = 0; i < shard.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(shard[i]), std::bit_cast<std::uint32_t>(wanted[i])) << b.value;
    }
  }
  float sum_of(ParamId param, std::int64_t i) const {
    float total = 0;
    for (int r = 0; r < mpi().size(); ++r) {
      float mine = 0;
      for (int n = 0; n < model_.written[param]; ++n)
        mine = n == 0 ? contribution(r, param, n, i) : mine + contribution(r, param, n, i);
      total = r == 0 ? mine : total + mine;
    }
    return total;
  }

  /// Ends a step, as after the optimizer's.
  void end_step() {
    if (!reduced_) return;
    if (!model_.outdate()) {
      expect_refused([&] { (void)std::move(*reduced_).clipped(stream(), nullptr); });
      end_uses();
      return drop();
    }
    Clipped clipped = std::move(*reduced_).clipped(stream(), nullptr);
    reduced_.reset();
    expect_model();
    if (updates_() % 4 == 0) return drop(std::move(clipped));
    Updated updated = std::move(clipped).updated();
    sum_.reset();  // drops gradients that are empty already
    model_.empty();
    for (BucketId b : layout_.buckets().ids())  // no gradients are leased, since they have been reduced
      fill(stream(), sync_.gradients().storage(b), std::numeric_limits<double>::quiet_NaN());
    publish(std::move(updated));
  }
  void drop(Clipped&& clipped) {
    { const Clipped dropped = std::move(clipped); }
    sum_.reset();
    model_.empty();
    publish();  // what an update has outdated is not readable before
  }
  void drop() {
    if (!sum_ && !reduced_) return;
    sum_.reset();
    reduced_.reset();
    model_.empty();
  }
  void publish() {
    publish(masters_.initialise(stream(), registry_, layout_, mesh_.ranks(), number_));
  }
  void publish(Updated&& updated) {
    if (!model_.publish()) {
      expect_refused([&] { sync_.publish(stream(), std::move(updated)); });
      return end_uses();
    }
    sync_.publish(stream(), masters_.initialise(stream(), registry_, layout_, mesh_.ranks(), ++number_));
  }
  void end_uses() {
    kept_.clear();
    model_.uses = 0;
  }
  void settle() {
    model_.settle();
    sync_.settle(stream());
  }

  Device device_;
  ParamRegistry registry_;
  ParamLayout layout_;
  Usage usage_;
  Mesh mesh_;
  Masters masters_;
  ParamSync sync_;
  Model model_;
  std::mt19937 random_, updates_;
  std::uint64_t number_ = 0;  ///< number of the masters published last
  std::optional<Accumulating> sum_;
  std::optional<Reduced> reduced_;
  std::vector<Use> kept_;
  int refused_ = 0;
};

/// How weights are held, and where they are cut.
struct Held {
  WeightRules weights;
  GatherCuts cuts;
};
std::vector<Held> ways_to_hold() {
  using enum GatherStaging;
  const auto quantized = [](GatherWire wire, GatherStaging staging, GatherCuts cuts) {
    return Held{{PrimaryWeights::quantized, wire, staging}, cuts};
  };
  return {{{}, GatherCuts::flat},
          {{}, GatherCuts::tile},
          quantized(GatherWire::quantized, automatic, GatherCuts::flat),
          quantized(GatherWire::quantized, automatic, GatherCuts::tile),
          quantized(GatherWire::bf16, alias_grads, GatherCuts::flat),
          quantized(GatherWire::bf16, alias_grads, GatherCuts::tile),
          quantized(GatherWire::bf16, ring, GatherCuts::flat),
          quantized(GatherWire::bf16, ring, GatherCuts::tile)};
}

TEST(ParamSyncModel, RandomCallsFollowTheModel) {
  int refused = 0;
  std::ptrdiff_t shared = 0;
  unsigned seed = 0;
  for (const Held& held : ways_to_hold())
    for (Overlap gather : {Overlap::off, Overlap::on})
      for (Overlap reduce : {Overlap::off, Overlap::on})
        for (std::int64_t bucket_elements : {1, 400, 1 << 20}) {
          SCOPED_TRACE("seed " + std::to_string(++seed));
          Walk walk({gather, reduce, contributions, ReduceOrder::rank, held.weights}, held.cuts, bucket_elements, seed);
          for (int i = 0; i < 60; ++i) {
            walk.step();
            walk.expect_model();
            if (::testing::Test::HasFatalFailure()) return;
          }
          refused += walk.refused();
          shared += walk.shared_groups();
        }
  EXPECT_GT(refused, 50);
  EXPECT_GT(shared, 0);
}

}  // namespace
}  // namespace tessera
