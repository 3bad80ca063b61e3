// Whole-matrix owners: dealing members to ranks, and the resulting layouts.
#include "core/layout/dealing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "core/layout/layout.hpp"
#include "core/model/gpt.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using Runs = std::vector<OwnedRange>;

std::vector<OwnerLoad> of_costs(const std::vector<double>& costs, std::int64_t elements = 1) {
  std::vector<OwnerLoad> members;
  for (double cost : costs) members.push_back({cost, elements});
  return members;
}
Runs dealt(int ranks, const std::vector<OwnerLoad>& members) { return Dealing(ranks, members).deal(members); }

TEST(Dealing, RunsEndWhereTheirShareIsReached) {
  EXPECT_EQ(dealt(2, of_costs({1, 1, 1, 1})), (Runs{{2, 0}, {2, 1}}));
  EXPECT_EQ(dealt(2, of_costs({1, 1, 4})), (Runs{{2, 1}, {1, 0}})) << "the costlier run is dealt first";
  EXPECT_EQ(dealt(3, of_costs({9, 1, 1})), (Runs{{1, 0}, {1, 1}, {1, 2}}));
  EXPECT_EQ(dealt(3, of_costs({1, 1, 9})), (Runs{{1, 1}, {1, 2}, {1, 0}})) << "each later run needs a member";
  EXPECT_EQ(dealt(2, of_costs({5, 1, 1, 1, 1, 1})), (Runs{{1, 0}, {5, 1}}));
  EXPECT_EQ(dealt(4, of_costs({3, 2})), (Runs{{1, 0}, {1, 1}})) << "fewer members than ranks";
  EXPECT_EQ(dealt(1, of_costs({3, 2, 7})), (Runs{{3, 0}}));
  EXPECT_EQ(dealt(4, {}), Runs{});
}

TEST(Dealing, TheNextBucketGoesToWhoHasLeast) {
  const std::vector<OwnerLoad> all = of_costs({8, 1, 3, 3, 5, 5, 1});
  Dealing dealing(3, all);
  const auto deal = [&](std::size_t first, std::size_t count) {
    return dealing.deal(std::span(all).subspan(first, count));
  };
  EXPECT_EQ(deal(0, 2), (Runs{{1, 0}, {1, 1}}));
  EXPECT_EQ(deal(2, 2), (Runs{{1, 2}, {1, 1}})) << "of equal runs the earlier, to the rank of least cost";
  EXPECT_EQ(deal(4, 3), (Runs{{1, 2}, {1, 1}, {1, 0}})) << "costs so far are 8, 4, 3; a rank has one run of a bucket";
  EXPECT_EQ(dealing.loads(), (std::vector<OwnerLoad>{{9, 2}, {9, 3}, {8, 2}}));
}

TEST(Dealing, PassesOverRanksWithTooManyElements) {
  // Cheap members with many elements: without the limit of elements rank 0, with the least cost, would get a second
  // one.
  const std::vector<OwnerLoad> all{{1, 100}, {9, 10}, {1, 60}, {1, 10}};
  Dealing dealing(2, all);  // 1.25 * 90 + 100 = 212.5
  EXPECT_EQ(dealing.deal(std::span(all).first(2)), (Runs{{1, 1}, {1, 0}}));
  EXPECT_EQ(dealing.deal(std::span(all).subspan(2, 1)), (Runs{{1, 1}}));
  const std::vector<OwnerLoad> more{{9, 1}, {1, 50}, {1, 50}, {1, 50}, {1, 50}, {1, 50}};
  Dealing one_by_one(2, more);  // 1.25 * 125.5 + 50 = 206.9: the fifth of 50 no longer fits
  std::vector<int> ranks;
  for (const OwnerLoad& member : more) ranks.push_back(one_by_one.deal({&member, 1}).front().rank);
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 1, 1, 1, 0}));
  Dealing none_fits(1, all);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(none_fits.deal(all), (Runs{{4, 0}})) << "where all would exceed it";
}

ParamSpec matrix(const std::string& name, std::int64_t out, std::int64_t in, const Shape& parts = {}) {
  return {name, {out, in}, 1, Role::matrix, {}, {name, {out, in}, 0}, {}, parts};
}
ParamSpec experts(const std::string& name, int count, std::int64_t out, std::int64_t in) {
  return {name, {out, in}, count, Role::expert, {}, {name, {count, out, in}, 0}};
}
ParamSpec bias(const std::string& name, std::int64_t n) {
  return {name, {n}, 1, Role::bias, {}, {name, {n}, 0}};
}

TEST(NewtonSchulzCost, CountsEachPartByItself) {
  EXPECT_EQ(newton_schulz_cost(matrix("a", 3, 5)), 45);
  EXPECT_EQ(newton_schulz_cost(matrix("a", 5, 3)), 45);
  EXPECT_EQ(newton_schulz_cost(matrix("qkv", 12, 6, {8, 2, 2})), 6 * 6 * 8 + 2 * (2 * 2 * 6));
  EXPECT_EQ(newton_schulz_cost(experts("e", 4, 5, 3)), 45) << "of one member";
}

TEST(ParamRegistry, PartsHaveTheRowsBetweenThem) {
  ParamRegistry registry;
  EXPECT_NO_THROW(registry.add(matrix("a", 7, 3, {3, 4})));
  EXPECT_THROW(registry.add(matrix("b", 7, 3, {3, 3})), Error);
}

LayoutRules muon(int ranks, int expert_ranks, std::int64_t elements) {
  return {ranks, expert_ranks, elements, OwnerKind::whole_matrix};
}
/// Rank `r` of `n` in every group.
Ranks at(int r, int n) { return {{r, n}, {r, n}, {}}; }

ParamRegistry odd_registry(std::mt19937& random, int layers) {
  const auto odd = [&](int most) { return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most)); };
  ParamRegistry registry;
  for (int i = 0; i < layers; ++i) {
    const std::string name = std::to_string(i);
    registry.add(bias("bias" + name, odd(300)));
    registry.add(matrix("matrix" + name, odd(60), odd(60)));
    registry.add(matrix("qkv" + name, 12, odd(40), {8, 2, 2}));
    if (i % 2 == 0) registry.add(experts("experts" + name, static_cast<int>(odd(7)), odd(30), odd(30)));
  }
  return registry;
}

void expect_owned_whole_and_once(const ParamRegistry& registry, const ParamLayout& layout) {
  for (BucketId b : layout.buckets().ids()) {
    const Bucket& bucket = layout.buckets()[b];
    std::vector<int> times(static_cast<std::size_t>(bucket.size.value), 0);
    std::size_t pieces = 0, owners = 0;
    for (int r = 0; r < bucket.ranks(); ++r) {
      const auto rank = static_cast<std::size_t>(r);
      ASSERT_LE(bucket.begins[rank] + bucket.counts[rank], bucket.size.value);
      ASSERT_EQ(bucket.begins[rank] % ParamLayout::cut_elements, 0);
      owners += bucket.counts[rank] > 0;
      for (std::int64_t i = 0; i < bucket.counts[rank]; ++i)
        ++times[static_cast<std::size_t>(bucket.begins[rank] + i)];
      for (const ShardRange& piece : layout.shard_ranges(b, at(r, bucket.ranks()))) {
        ++pieces;
        if (bucket.key.owner == OwnerKind::element_sharded) continue;
        ASSERT_EQ(piece.count.value, registry[piece.param].member_elements()) << "a member is owned whole";
      }
    }
    ASSERT_EQ(times, std::vector<int>(times.size(), 1));
    if (bucket.key.owner != OwnerKind::whole_matrix) continue;
    EXPECT_EQ(pieces, bucket.members.size());
    EXPECT_EQ(owners, std::min(bucket.members.size(), static_cast<std::size_t>(bucket.ranks())));
    EXPECT_EQ(bucket.size.value % 128, 0);
  }
}

TEST(WholeMatrixLayout, EveryMemberIsOwnedWholeAndOnceForAnyRankCount) {
  std::mt19937 random(19);
  for (int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 48, 96, 256})
    for (int expert_ranks : {1, ranks})
      for (std::int64_t elements : {1, 3000, 1 << 20}) {
        const ParamRegistry registry = odd_registry(random, 1 + static_cast<int>(random() % 6));
        for (OwnerKind kind : {OwnerKind::element_sharded, OwnerKind::whole_matrix})
          expect_owned_whole_and_once(registry, ParamLayout::build(registry, {ranks, expert_ranks, elements, kind}));
      }
}

TEST(WholeMatrixLayout, MatricesAndExpertsAloneHaveOwners) {
  std::mt19937 random(23);
  const ParamRegistry registry = odd_registry(random, 5);
  const ParamLayout whole = ParamLayout::build(registry, muon(3, 3, 3000));
  const ParamLayout sharded = ParamLayout::build(registry, {3, 3, 3000});
  for (const Bucket& bucket : whole.buckets())
    for (const Placement& p : bucket.members)
      EXPECT_EQ(bucket.key.owner == OwnerKind::whole_matrix, registry[p.param].role != Role::bias);
  for (const Bucket& bucket : sharded.buckets())
    EXPECT_EQ(bucket.key.owner, OwnerKind::element_sharded);
}

TEST(WholeMatrixLayout, ABucketHasAboutAMatrixForEachRank) {
  ParamRegistry registry;
  for (int i = 0; i < 12; ++i) registry.add(matrix("m" + std::to_string(i), 16, 16));
  registry.add(experts("experts", 5, 16, 16));
  const auto members = [&](int ranks, std::int64_t elements) {
    std::vector<std::size_t> counts;
    const ParamLayout layout = ParamLayout::build(registry, muon(ranks, ranks, elements));
    for (const Bucket& bucket : layout.buckets())
      if (bucket.key.processes == ProcessGroup::dense) counts.push_back(bucket.members.size());
    return counts;
  };
  using Counts = std::vector<std::size_t>;
  EXPECT_EQ(members(1, 1), Counts(12, 1));
  EXPECT_EQ(members(4, 1), (Counts{4, 4, 4})) << "0.9 * 4 matrices want four";
  EXPECT_EQ(members(10, 1), (Counts{9, 3})) << "and 0.9 * 10 want nine";
  EXPECT_EQ(members(2, 1500), (Counts{6, 6})) << "bucket_mib wants six";
  const ParamLayout layout = ParamLayout::build(registry, muon(2, 2, 1));
  const auto grouped = std::ranges::find(layout.buckets(), ProcessGroup::expert,
                                         [](const Bucket& b) { return b.key.processes; });
  ASSERT_NE(grouped, layout.buckets().end());
  EXPECT_EQ(grouped->members.size(), 5u) << "a projection is never cut";
}

GptShape small_model(ExpertWeights weights) {
  GptShape shape;
  shape.layers = 3;
  shape.hidden = 48;
  shape.heads = 6;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.ffn = 40;
  shape.seq_len = 16;
  shape.vocabulary = 100;
  shape.activation = Activation::swiglu;
  shape.moe = MoeShape{.experts = 5, .top_k = 2, .weights = weights, .ffn = 40};
  return shape;
}

TEST(WholeMatrixLayout, SingleAndDiscreteExpertsHaveTheSameOwners) {
  ParamRegistry single, discrete;
  const Gpt one(single, small_model(ExpertWeights::single)), other(discrete, small_model(ExpertWeights::discrete));
  for (int ranks : {1, 3, 8})
    for (std::int64_t elements : {1, 20000}) {
      SCOPED_TRACE(test::shown(ranks, elements));
      const ParamLayout a = ParamLayout::build(single, muon(ranks, ranks, elements));
      const ParamLayout b = ParamLayout::build(discrete, muon(ranks, ranks, elements));
      EXPECT_EQ(a.hash(), b.hash());
      for (ProcessGroup group : {ProcessGroup::dense, ProcessGroup::expert})
        EXPECT_EQ(a.owners(group), b.owners(group));
    }
}

TEST(WholeMatrixLayout, LayersTellTheirParts) {
  ParamRegistry registry;
  const Gpt gpt(registry, small_model(ExpertWeights::single));
  std::set<std::string> dense, expert, other;
  for (const ParamSpec& spec : registry.specs())
    (spec.role == Role::matrix ? dense : spec.role == Role::expert ? expert : other).insert(spec.parts.text());
  using Parts = std::set<std::string>;
  EXPECT_EQ(dense, (Parts{"[]", "[48,16,16]"})) << "the projection back, and query, key and value";
  EXPECT_EQ(expert, (Parts{"[]", "[40,40]"})) << "down, and gate and up";
  EXPECT_EQ(other, Parts{"[]"});
}

TEST(WholeMatrixLayout, OwnersShareTheCostOfAModel) {
  GptShape shape;
  shape.layers = 12;
  shape.hidden = 768;
  shape.heads = shape.kv_heads = 12;
  shape.head_dim = 64;
  shape.ffn = 3072;
  shape.seq_len = 1024;
  shape.vocabulary = 50257;
  ParamRegistry registry;
  const Gpt gpt(registry, shape);
  for (int ranks : {1, 2, 3, 4, 8}) {
    const ParamLayout layout = ParamLayout::build(registry, muon(ranks, ranks, 25 << 18));
    const std::vector<OwnerLoad>& owners = layout.owners(ProcessGroup::dense);
    ASSERT_EQ(owners.size(), static_cast<std::size_t>(ranks));
    double cost = 0, most = 0;
    for (const OwnerLoad& owner : owners) {
      cost += owner.cost;
      most = std::max(most, owner.cost);
    }
    EXPECT_EQ(cost, 12 * 12 * 768.0 * 768 * 768) << "twelve squares of the width a block";
    EXPECT_LE(most * ranks, 1.25 * cost) << ranks;
  }
}

TEST(WholeMatrixLayout, TheHashTellsOwnersApart) {
  ParamRegistry fused, one;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "m" + std::to_string(i);
    fused.add(matrix(name, 32, 16, i == 0 ? Shape{8, 8, 8, 8} : Shape()));
    one.add(matrix(name, 32, 16, i == 3 ? Shape{8, 8, 8, 8} : Shape()));
  }
  const auto hash = [](const ParamRegistry& registry, const LayoutRules& rules) {
    return ParamLayout::build(registry, rules).hash();
  };
  EXPECT_NE(hash(fused, muon(2, 2, 4000)), hash(one, muon(2, 2, 4000)));
  EXPECT_EQ(hash(fused, {2, 2, 4000}), hash(one, {2, 2, 4000})) << "slices of elements know no parts";
  EXPECT_NE(hash(fused, {2, 2, 4000}), hash(fused, muon(2, 2, 4000)));
}

/// The owner kinds of each group's buckets, in their order.
std::vector<std::vector<OwnerKind>> kinds(const ParamRegistry& registry, const LayoutRules& rules) {
  std::vector<std::vector<OwnerKind>> all;
  const ParamLayout layout = ParamLayout::build(registry, rules);
  for (const BucketGroup& group : layout.groups()) {
    all.emplace_back();
    for (BucketId b : group.buckets) all.back().push_back(layout.buckets()[b].key.owner);
  }
  return all;
}

TEST(WholeMatrixLayout, GroupsOfEitherKindAndMixedWithEitherFirst) {
  constexpr auto whole = OwnerKind::whole_matrix, elements = OwnerKind::element_sharded;
  using Kinds = std::vector<std::vector<OwnerKind>>;
  ParamRegistry begins_with_bias, begins_with_matrix, matrices;
  begins_with_bias.add(bias("b0", 40));
  begins_with_bias.add(matrix("m0", 8, 8));
  begins_with_matrix.add(matrix("m0", 8, 8));
  begins_with_matrix.add(bias("b0", 40));
  for (ParamRegistry* registry : {&begins_with_bias, &begins_with_matrix}) {
    registry->add(matrix("m1", 8, 8));
    registry->add(bias("b1", 40));
  }
  matrices.add(matrix("m0", 8, 8));
  matrices.add(matrix("m1", 8, 8));
  EXPECT_EQ(kinds(begins_with_bias, muon(1, 1, 1)), (Kinds{{elements}, {whole}, {whole, elements}}));
  EXPECT_EQ(kinds(begins_with_matrix, muon(1, 1, 1)), (Kinds{{elements}, {whole}, {elements, whole}}));
  EXPECT_EQ(kinds(matrices, muon(1, 1, 1)), (Kinds{{whole}, {whole}}));
}

}  // namespace
}  // namespace tessera
