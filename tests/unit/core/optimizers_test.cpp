#include "core/optim/optimizers.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <map>
#include <set>

#include "core/optim/adamw.hpp"
#include "core/optim/muon.hpp"
#include "core/params/param_sync.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/random/random.hpp"
#include "tests/reference/adamw.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

constexpr double decay = 0.25;

/// Parameters of odd sizes, with and without decay, in several buckets; one discrete expert projection.
ParamRegistry parameters() {
  ParamRegistry registry;
  const auto add = [&](const std::string& name, Shape shape, Role role) {
    registry.add({name, shape, 1, role, {Start::Kind::normal, 0.5}, {name, shape, 0}});
  };
  add("embed", {37, 5}, Role::embedding);
  add("norm", {33}, Role::norm);
  for (int e = 0; e < 3; ++e)
    registry.add({"experts." + std::to_string(e), {7, 9}, 1, Role::expert, {Start::Kind::normal, 0.5},
                  {"experts", {3, 7, 9}, e * 63}});
  add("proj", {30, 11}, Role::matrix);
  add("bias", {41}, Role::bias);
  return registry;
}

/// A rule that sets every master of its buckets to the number of its steps.
class Counting final : public Rule {
 public:
  Counting(Device& device, const ParamLayout& layout, std::vector<BucketId> buckets, const char* slot,
           std::string counter)
      : Rule(std::move(buckets)), device_(device), slot_(slot), counter_(std::move(counter)) {
    for (BucketId b : this->buckets())
      slices_.push_back({b, device.allocate(Category::optimizer, DType::f32, {layout.buckets()[b].counts[0]})});
  }
  void initialise(Stream& stream) override {
    for (const BucketSlice& slice : slices_) clear(stream, slice.values);
  }
  void step(Stream& stream, const Clipped&, const Masters& masters, const RulePlaces& places) override {
    ++steps_;
    for (BucketId b : buckets()) fill(stream, masters.shard(b), static_cast<double>(steps_));
    ASSERT_EQ(places.counters.elements(), 1);
    device_.upload(stream, places.counters, &steps_);
  }
  void visit_state(const SlotVisitor& visit) const override { visit({slot_, slices_}); }
  void visit_counters(const CounterVisitor& visit) const override { visit({counter_, std::int64_t{0}}); }

 private:
  Device& device_;
  const char* slot_;
  std::string counter_;
  std::vector<BucketSlice> slices_;
  std::int64_t steps_ = 0;
};

class OptimizersTest : public ::testing::Test {
 protected:
  using Rules = std::vector<std::unique_ptr<Rule>>;

  std::vector<BucketId> buckets(const std::function<bool(const Bucket&)>& wanted) const {
    std::vector<BucketId> found;
    for (BucketId b : layout_.buckets().ids())
      if (wanted(layout_.buckets()[b])) found.push_back(b);
    return found;
  }
  std::vector<BucketId> dense() const {
    return buckets([](const Bucket& b) { return b.key.processes == ProcessGroup::dense; });
  }
  std::vector<BucketId> experts() const {
    return buckets([](const Bucket& b) { return b.key.processes == ProcessGroup::expert; });
  }
  std::unique_ptr<Rule> adamw(std::vector<BucketId> buckets) {
    return std::make_unique<AdamW>(device_, registry_, layout_, Ranks{}, std::move(buckets), coefficients_, decay);
  }
  std::unique_ptr<Rule> counting(std::vector<BucketId> buckets, const char* slot = "counting/x",
                                 std::string counter = "counting_steps") {
    return std::make_unique<Counting>(device_, layout_, std::move(buckets), slot, std::move(counter));
  }
  static Rules both(std::unique_ptr<Rule> a, std::unique_ptr<Rule> b) {
    Rules rules;
    rules.push_back(std::move(a));
    rules.push_back(std::move(b));
    return rules;
  }
  std::string refused(Rules rules) {
    try {
      const Optimizers optimizers(std::move(rules), layout_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::internal);
      return error.what();
    }
    return "nothing was refused";
  }

  Device device_;
  ParamRegistry registry_ = parameters();
  ParamLayout layout_ = ParamLayout::build(registry_, {1, 1, 100});
  AdamWCoefficients coefficients_{0.875, 0.9, 1e-8};
};

TEST_F(OptimizersTest, EachBucketHasExactlyOneRule) {
  ASSERT_EQ(dense().size(), 2u);
  ASSERT_EQ(experts().size(), 1u);
  EXPECT_NO_THROW(Optimizers(both(adamw(dense()), counting(experts())), layout_));
  std::vector<BucketId> fewer = dense(), more = dense();
  fewer.pop_back();
  more.push_back(experts().front());
  const std::string lost = std::to_string(dense().back().value), shared = std::to_string(experts().front().value);
  EXPECT_NE(refused(both(adamw(fewer), counting(experts()))).find("bucket " + lost + " has 0 rules"),
            std::string::npos);
  EXPECT_NE(refused(both(adamw(more), counting(experts()))).find("bucket " + shared + " has 2 rules"),
            std::string::npos);
  EXPECT_NE(refused({}).find("bucket 0 has 0 rules"), std::string::npos);
}

TEST_F(OptimizersTest, NamesAreEachRulesOwn) {
  const auto second = [&](const char* slot, const std::string& counter) {
    return refused(both(adamw(dense()), counting(experts(), slot, counter)));
  };
  EXPECT_NE(second("adamw/v", "own").find("two rules have /adamw/v"), std::string::npos);
  EXPECT_NE(second("own", "beta1_power").find("two rules have /counters/beta1_power"), std::string::npos);
  EXPECT_NE(second("own", "tokens").find("two rules have /counters/tokens"), std::string::npos) << "the run's own";
}

TEST_F(OptimizersTest, RulesOfADeckCoverEveryBucket) {
  const Optimizers optimizers(rules_of(OptimizerConfig{}, {}, device_, registry_, layout_, Ranks{}), layout_);
  std::vector<std::string> slots;
  optimizers.visit_state([&](const StateSlot& slot) {
    slots.emplace_back(slot.name);
    EXPECT_EQ(slot.slices.size(), layout_.buckets().size());
  });
  EXPECT_EQ(slots, (std::vector<std::string>{"adamw/m", "adamw/v"}));
  EXPECT_EQ(optimizers.counters(), fresh_adamw_counters());
}

TEST_F(OptimizersTest, MuonStepsWhatIsOwnedWhole) {
  const ParamLayout owned = ParamLayout::build(registry_, {1, 1, 100, OwnerKind::whole_matrix});
  OptimizerConfig config;
  config.matrices = MatrixRule::muon;
  config.moments = Moments::bf16;
  const Optimizers optimizers(rules_of(config, {}, device_, registry_, owned, Ranks{}), owned);
  std::map<std::string, std::set<std::string>> held;
  optimizers.visit_state([&](const StateSlot& slot) {
    EXPECT_EQ(slot.type(), DType::bf16) << slot.name;
    StateDict state;
    state.add(slot, registry_, owned, Ranks{});
    for (const StateTensor& tensor : state.tensors) held[slot.name].insert(tensor.name);
  });
  const std::set<std::string> others{"embed", "norm", "bias"};
  EXPECT_EQ(held, (std::map<std::string, std::set<std::string>>{
                      {"adamw/m", others}, {"adamw/v", others}, {"muon/momentum", {"experts", "proj"}}}));
  EXPECT_EQ(optimizers.counters(), fresh_adamw_counters()) << "Muon counts nothing";
}

TEST_F(OptimizersTest, MuonRefusesSlicesOfElements) {
  EXPECT_THROW(Muon(device_, registry_, layout_, Ranks{}, experts(), OptimizerConfig{}), Error);
}

TEST(MuonScales, AreThoseOfTheirNames) {
  EXPECT_EQ(scale_of(MuonScale::spectral, 4, 9), 3);
  EXPECT_EQ(scale_of(MuonScale::spectral, 16, 9), 4);
  EXPECT_EQ(scale_of(MuonScale::shape, 4, 9), 1);
  EXPECT_EQ(scale_of(MuonScale::shape, 36, 9), 2);
  EXPECT_EQ(scale_of(MuonScale::rms, 25, 9), 1);
}

TEST_F(OptimizersTest, ASlotHoldsItsRulesParametersAlone) {
  const Optimizers optimizers(both(adamw(dense()), counting(experts())), layout_);
  StateDict state;
  optimizers.visit_state([&](const StateSlot& slot) { state.add(slot, registry_, layout_, Ranks{}); });
  std::vector<std::string> paths;
  for (const StateTensor& tensor : state.tensors) {
    paths.push_back(tensor.path());
    std::int64_t held = 0;
    for (const StateRange& range : tensor.ranges) {
      EXPECT_EQ(range.first, held) << tensor.path();
      held += range.values.elements();
    }
    EXPECT_EQ(held, tensor.shape.elements()) << tensor.path();
  }
  EXPECT_EQ(paths, (std::vector<std::string>{"/adamw/m/embed", "/adamw/m/norm", "/adamw/m/proj", "/adamw/m/bias",
                                             "/adamw/v/embed", "/adamw/v/norm", "/adamw/v/proj", "/adamw/v/bias",
                                             "/counting/x/experts"}));
}

TEST_F(OptimizersTest, CountersGoByName) {
  const Optimizers optimizers(both(counting(experts()), adamw(dense())), layout_);
  const std::vector<RuleCounter> fresh = optimizers.counters();
  ASSERT_EQ(fresh.size(), 4u);
  EXPECT_EQ(fresh[0], (RuleCounter{"counting_steps", std::int64_t{0}}));
  EXPECT_EQ(fresh[2].path(), "/counters/beta1_power");
  EXPECT_EQ(optimizers.counters_of(optimizers.words_of(fresh)), fresh);
  const std::vector<RuleCounter> saved{{"beta2_power", 0.25}, {"counting_steps", std::int64_t{-3}},
                                       {"beta1_power", 0.5},  {"t", std::int64_t{9}}};
  const std::vector<std::uint64_t> words = optimizers.words_of(saved);
  EXPECT_EQ(words, (std::vector<std::uint64_t>{~std::uint64_t{2}, 9, std::bit_cast<std::uint64_t>(0.5),
                                               std::bit_cast<std::uint64_t>(0.25)}));
  EXPECT_EQ(optimizers.counters_of(words)[3], saved[0]);
  std::vector<RuleCounter> fewer(saved.begin(), saved.end() - 1), other = saved, mistyped = saved;
  other[1].name = "steps";
  mistyped[3].value = 9.0;
  for (const auto& wrong : {fewer, other, mistyped}) EXPECT_THROW(optimizers.words_of(wrong), Error);
}

/// Two rules: Counting on the experts, AdamW on all else, compared with the serial reference of AdamW.
class SteppedTest : public OptimizersTest {
 protected:
  /// Expected masters of a bucket after AdamW, member by member; gaps are zero.
  struct Expected {
    std::vector<float> master, m, v;
  };

  SteppedTest() : optimizers_(both(counting(experts()), adamw(dense())), layout_) {
    sync_.publish(stream(), masters_.initialise(stream(), registry_, layout_, Ranks{}, 3));
    optimizers_.initialise(stream());
    const std::vector<std::uint64_t> words = optimizers_.words_of(optimizers_.counters());
    device_.upload(stream(), counters_, words.data());
    device_.upload(stream(), clip_memory_, &clip_);
    device_.upload(stream(), rate_memory_, &rate_);
    for (BucketId b : dense()) {
      const std::vector<float> master = test::on_host<float>(device_, masters_.shard(b));
      expected_[b.value] = {master, std::vector<float>(master.size(), 0), std::vector<float>(master.size(), 0)};
    }
  }

  Stream& stream() { return device_.compute(); }
  static Usage usage_of(const ParamRegistry& registry) {
    Usage usage;
    for (int p = 0; p < registry.size(); ++p) {
      usage.training.push_back({{p}, Side::rowwise, Half::forward});
      usage.contributions.push_back({{p}, 0});
    }
    return usage;
  }

  Reduced gradients(std::uint64_t step) {
    Accumulating sum = sync_.accumulate();
    for (int p = registry_.size() - 1; p >= 0; --p) {
      const Tensor gradient = sum.slot({p}).sum;
      const auto values = test::uniform<float>(gradient.elements(), 100 * step + static_cast<std::uint64_t>(p));
      device_.upload(stream(), gradient, values.data());
      sum.written(stream(), {p});
    }
    return std::move(sum).reduce(stream());
  }

  void step_reference(const Reduced& gradients) {
    reference::adamw_advance(coefficients_, clock_, clip_);
    for (auto& [b, bucket] : expected_) {
      const std::vector<float> gradient = test::on_host<float>(device_, gradients.shard({b}));
      for (const ShardRange& piece : layout_.shard_ranges({b}, Ranks{})) {
        const auto part = [&](auto& all) {
          return std::span(all).subspan(static_cast<std::size_t>(piece.shard.value),
                                        static_cast<std::size_t>(piece.count.value));
        };
        const float weight_decay = decays(registry_[piece.param].role) ? float{decay} : 0.0f;
        reference::adamw_step<float>(coefficients_, weight_decay, part(bucket.master), part(bucket.m), part(bucket.v),
                                     part(gradient), clock_, clip_, rate_);
      }
    }
  }

  /// Makes a step; returns the number of the rules' launches.
  std::int64_t step(Reduced&& gradients) {
    const std::int64_t before = stream().launches();
    Updated updated = optimizers_.step(
        stream(), std::move(gradients).clipped(stream(), static_cast<const ClipResult*>(clip_memory_.data)), masters_,
        {rate_memory_.as<float>(), counters_});
    const std::int64_t launches = stream().launches() - before;
    sync_.publish(stream(), std::move(updated));
    return launches;
  }

  void expect_rounded(const char* when) {
    int arrays = 0;
    sync_.inspect(stream(), [&](const Plane& plane) {
      const auto masters = test::on_host<float>(device_, masters_.shard(plane.bucket));
      EXPECT_TRUE(test::same_bits(test::on_host<bf16>(device_, plane.values),
                                  std::vector<bf16>(masters.begin(), masters.end())))
          << "bucket " << plane.bucket.value << ' ' << when;
      ++arrays;
    });
    EXPECT_EQ(arrays, layout_.buckets().size());
  }

  Usage usage_ = usage_of(registry_);
  Mesh mesh_ = self_mesh();
  Masters masters_{device_, layout_, Ranks{}};
  ParamSync sync_{device_,  registry_, layout_, schedule_of({usage_, registry_, layout_, mesh_.ranks(), {}}),
                  masters_, mesh_,     {}};
  Optimizers optimizers_;
  ClipResult clip_{2, 0.5f, 0};
  float rate_ = 0.125f;
  Tensor counters_ = device_.allocate(Category::batch, DType::i64, {4});
  Tensor clip_memory_ = device_.allocate(Category::batch, DType::u8, {std::int64_t{sizeof(ClipResult)}});
  Tensor rate_memory_ = device_.allocate(Category::batch, DType::f32, {1});
  std::map<int, Expected> expected_;
  AdamWClock clock_;
};

TEST_F(SteppedTest, EachRuleStepsItsOwnBucketsWithItsOwnCounters) {
  for (std::uint64_t n = 1; n <= 3; ++n) {
    Reduced reduced = gradients(n);
    step_reference(reduced);
    EXPECT_EQ(step(std::move(reduced)), 1 + std::ssize(experts())) << "AdamW has one, the other rule one a bucket";
  }
  std::map<std::string, std::map<int, Tensor>> slots;
  optimizers_.visit_state([&](const StateSlot& slot) {
    for (const BucketSlice& slice : slot.slices) slots[slot.name][slice.bucket.value] = slice.values;
  });
  for (const auto& [b, bucket] : expected_) {
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device_, masters_.shard({b})), bucket.master)) << b;
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device_, slots["adamw/m"].at(b)), bucket.m)) << b;
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device_, slots["adamw/v"].at(b)), bucket.v)) << b;
  }
  for (BucketId b : experts())
    for (const float value : test::on_host<float>(device_, masters_.shard(b))) ASSERT_EQ(value, 3);
  const Tensor words{counters_.data, DType::u64, counters_.shape};
  EXPECT_EQ(optimizers_.counters_of(test::on_host<std::uint64_t>(device_, words)),
            (std::vector<RuleCounter>{{"counting_steps", std::int64_t{3}},
                                      {"t", std::int64_t{3}},
                                      {"beta1_power", clock_.beta1_power},
                                      {"beta2_power", clock_.beta2_power}}));
}

/// One rule for all buckets, which rounds the weights itself.
TEST_F(SteppedTest, PublicationReadsNoMasterThatTheUpdateRounds) {
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(adamw(buckets([](const Bucket&) { return true; })));
  optimizers_ = Optimizers(std::move(rules), layout_);
  optimizers_.initialise(stream());
  Updated updated = optimizers_.step(
      stream(), gradients(1).clipped(stream(), static_cast<const ClipResult*>(clip_memory_.data)), masters_,
      {rate_memory_.as<float>(), counters_.flat(0, 3)});
  const std::int64_t before = stream().launches();
  sync_.publish(stream(), std::move(updated));
  EXPECT_EQ(stream().launches(), before);
  expect_rounded("after a step");
}

TEST_F(SteppedTest, WeightsAreRoundedMastersWhoeverRoundsThem) {
  expect_rounded("drawn");
  for (std::uint64_t n = 1; n <= 2; ++n) step(gradients(n));
  expect_rounded("after two steps");
  clip_.skip = 1;
  device_.upload(stream(), clip_memory_, &clip_);
  step(gradients(3));
  expect_rounded("after a skipped step");
}

/// What an update was to write and did not, since it or its token was dropped, is rounded from the masters.
TEST_F(SteppedTest, ADroppedUpdateLeavesAllRoundingToPublication) {
  const auto publish_others = [&](double value) {
    sync_.publish(stream(), masters_.restore(stream(), [&] {
      for (const Tensor& shard : masters_.shards()) fill(stream(), shard, value);
    }));
  };
  const auto ask_for_all = [&](const Clipped& update) {
    for (BucketId b : layout_.buckets().ids()) EXPECT_TRUE(update.weight_shard(b));
  };
  {
    const Clipped dropped = gradients(1).clipped(stream(), nullptr);
    ask_for_all(dropped);
  }
  publish_others(0.3);
  expect_rounded("after a dropped update");
  {
    Clipped update = gradients(2).clipped(stream(), nullptr);
    ask_for_all(update);
    (void)std::move(update).updated();
  }
  publish_others(0.7);
  expect_rounded("after an update that was not published");
}

}  // namespace
}  // namespace tessera
