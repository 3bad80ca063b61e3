#include <gtest/gtest.h>

#include "core/optim/clip.hpp"
#include "core/optim/optimizers.hpp"
#include "core/params/param_sync.hpp"
#include "kernels/reduce/reduce.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

constexpr std::int64_t experts[] = {3, 70, 8};

/// A matrix and the selection biases of three routers, whose sizes leave gaps between them.
ParamRegistry parameters() {
  ParamRegistry registry;
  const auto add = [&](const std::string& name, Shape shape, Role role) {
    registry.add({name, shape, 1, role, {Start::Kind::normal, 0.5}, {name, shape, 0}});
  };
  add("proj", {30, 11}, Role::matrix);
  for (std::int64_t n : experts) add("bias" + std::to_string(n), {n}, Role::router_bias);
  add("load", {10}, Role::router_load);
  return registry;
}

class BalanceRule : public ::testing::Test {
 protected:
  static constexpr double slots = 840;  // shares of 280, 12 and 105
  static constexpr float rate = 0.125f;

  BalanceRule() {
    sync_.publish(stream(), masters_.initialise(stream(), registry_, layout_, Ranks{}, 3));
    optimizers_.initialise(stream());
    const std::vector<std::uint64_t> words = optimizers_.words_of(optimizers_.counters());
    device_.upload(stream(), counters_, words.data());
    const float tenth = 0.1f;
    device_.upload(stream(), rate_memory_, &tenth);
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
  BucketId counted() const { return layout_.placement({1}).bucket; }

  /// One step of gradients of `slope` and of counts below, at and above the shares, in turn.
  ClipResult step(float slope) {
    Accumulating sum = sync_.accumulate();
    for (int p = registry_.size() - 1; p >= 0; --p) {
      const Tensor gradient = sum.slot({p}).sum;
      std::vector<float> values(static_cast<std::size_t>(gradient.elements()), slope);
      for (std::size_t e = 0; p > 0 && e < values.size(); ++e)
        values[e] = static_cast<float>(slots / static_cast<double>(values.size())) + static_cast<float>(e % 3) - 1;
      device_.upload(stream(), gradient, values.data());
      sum.written(stream(), {p});
    }
    Reduced gradients = std::move(sum).reduce(stream());
    auto* const clip = static_cast<ClipResult*>(clip_memory_.data);
    const float limit = 1e9f;
    device_.upload(stream(), limit_, &limit);
    decide_clipping(stream(), gradients, layout_, mesh_.world(), words_, clip, 1, limit_.as<float>());
    ClipResult found;
    device_.download(stream(), &found, clip_memory_);
    sync_.publish(stream(), optimizers_.step(stream(), std::move(gradients).clipped(stream(), clip), masters_,
                                             {rate_memory_.as<float>(), counters_}));
    return found;
  }

  Device device_;
  ParamRegistry registry_ = parameters();
  ParamLayout layout_ = ParamLayout::build(registry_, {1, 1, 100000});
  Usage usage_ = usage_of(registry_);
  Mesh mesh_ = self_mesh();
  Masters masters_{device_, layout_, Ranks{}};
  ParamSync sync_{device_,  registry_, layout_, schedule_of({usage_, registry_, layout_, mesh_.ranks(), {}}),
                  masters_, mesh_,     {}};
  Optimizers optimizers_{rules_of(OptimizerConfig{}, {rate, slots}, device_, registry_, layout_, Ranks{}), layout_};
  Tensor counters_ = device_.allocate(Category::batch, DType::i64, {3});
  Tensor clip_memory_ = device_.allocate(Category::batch, DType::u8, {std::int64_t{sizeof(ClipResult)}});
  Tensor rate_memory_ = device_.allocate(Category::batch, DType::f32, {1});
  Tensor limit_ = device_.allocate(Category::batch, DType::f32, {1});
  Tensor words_ = device_.allocate(Category::batch, DType::i64, {ExactSum::words});
};

TEST_F(BalanceRule, HasItsOwnBucketsInFp32WithoutState) {
  const BucketKey& key = layout_.buckets()[counted()].key;
  EXPECT_EQ(key.owner, OwnerKind::counted);
  EXPECT_EQ(key.format, (WeightFormat{DType::f32, {}}));
  EXPECT_EQ(layout_.placement({3}).bucket, counted());
  EXPECT_NE(layout_.placement({0}).bucket, counted());
  optimizers_.visit_state([&](const StateSlot& slot) {
    for (const BucketSlice& slice : slot.slices) EXPECT_NE(slice.bucket, counted()) << slot.name;
  });
}

// The members move towards the mean, by the rate whatever the clip coefficient is; gaps stay zero. Counts are in no
// norm. What the next forward reads are the masters to the bit.
TEST_F(BalanceRule, StepsMembersAlone) {
  const std::vector<float> before = test::on_host<float>(device_, masters_.shard(counted()));
  std::vector<float> wanted = before;
  for (const ShardRange& piece : layout_.shard_ranges(counted(), Ranks{}))
    for (std::int64_t e = 0; e < piece.count.value; ++e) {
      float& bias = wanted[static_cast<std::size_t>(piece.shard.value + e)];
      const auto turn = static_cast<float>(e % 3 - 1);
      bias = piece.param == ParamId{4} ? 84 + turn : bias - rate * turn;
    }
  const ClipResult clip = step(2);
  EXPECT_EQ(clip.norm, static_cast<float>(std::sqrt(4.0 * 330)));
  EXPECT_LT(clip.coefficient, 0.1f);
  EXPECT_TRUE(test::same_bits(test::on_host<float>(device_, masters_.shard(counted())), wanted));
  std::int64_t moved = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) moved += wanted[i] != before[i];
  EXPECT_EQ(moved, 2 + 47 + 5 + 10);
  const Forward forward = sync_.forward(stream());
  for (int p = 1; p <= 3; ++p) {
    const Use use = sync_.operand(stream(), {p}, Side::rowwise);
    EXPECT_EQ(use->data.type, DType::f32);
    const auto at = wanted.begin() + layout_.placement({p}).offset.value;
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device_, use->data), std::vector<float>(at, at + experts[p - 1])));
  }
}

TEST_F(BalanceRule, ASkippedStepChangesNothing) {
  const std::vector<float> before = test::on_host<float>(device_, masters_.shard(counted()));
  EXPECT_NE(step(std::numeric_limits<float>::infinity()).skip, 0);
  EXPECT_TRUE(test::same_bits(test::on_host<float>(device_, masters_.shard(counted())), before));
}

}  // namespace
}  // namespace tessera
