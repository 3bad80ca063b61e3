#include "core/layout/layout.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kernels/formats/registry.hpp"
#include "tests/support/portable_bits.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

ParamSpec vector_of(const std::string& name, std::int64_t n) {
  return {name, {n}, 1, Role::bias, {}, {name, {n}, 0}};
}

/// Experts' weights of one projection, as one parameter (single) or one each (discrete).
void add_experts(ParamRegistry& registry, const std::string& name, int experts, std::int64_t out, std::int64_t in,
                 bool single) {
  const Shape canonical{experts, out, in};
  if (single) {
    registry.add({name, {out, in}, experts, Role::expert, {}, {name, canonical, 0}});
    return;
  }
  for (int e = 0; e < experts; ++e)
    registry.add({name + "." + std::to_string(e), {out, in}, 1, Role::expert, {}, {name, canonical, e * out * in}});
}

ParamRegistry odd_registry(std::mt19937& random, int count) {
  ParamRegistry registry;
  for (int i = 0; i < count; ++i)
    registry.add(vector_of("p" + std::to_string(i), 1 + static_cast<std::int64_t>(random() % 5000)));
  add_experts(registry, "experts", 3, 7, 11, true);
  return registry;
}

/// Rank `r` of `n` in every group.
Ranks at(int r, int n) { return {{r, n}, {r, n}, {}}; }

void expect_every_element_owned_once(const ParamRegistry& registry, const ParamLayout& layout) {
  for (int p = 0; p < registry.size(); ++p) {
    const ParamSpec& spec = registry[{p}];
    const Bucket& bucket = layout.buckets()[layout.placement({p}).bucket];
    std::vector<int> owners(static_cast<std::size_t>(spec.member_elements() * spec.members), 0);
    for (int r = 0; r < bucket.ranks(); ++r)
      for (const ShardRange& piece : layout.shard_ranges(layout.placement({p}).bucket, at(r, bucket.ranks())))
        for (std::int64_t i = 0; piece.param == ParamId{p} && i < piece.count.value; ++i)
          ++owners[static_cast<std::size_t>(piece.member * spec.member_elements() + piece.begin.value + i)];
    ASSERT_FALSE(owners.empty());
    for (int n : owners) ASSERT_EQ(n, 1) << spec.name;
  }
}

TEST(ParamLayout, EveryElementIsOwnedOnceForAnyRankCount) {
  std::mt19937 random(7);
  for (int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 48, 96, 256}) {
    for (int expert_ranks : {1, ranks}) {
      const ParamRegistry registry = odd_registry(random, 1 + static_cast<int>(random() % 12));
      const ParamLayout layout = ParamLayout::build(registry, {ranks, expert_ranks, 4096});
      expect_every_element_owned_once(registry, layout);
    }
  }
}

TEST(ParamLayout, BucketsAreAlignedPaddedAndNeverMixKeys) {
  std::mt19937 random(11);
  const ParamRegistry registry = odd_registry(random, 20);
  const ParamLayout layout = ParamLayout::build(registry, {6, 3, 4096});
  for (const Bucket& bucket : layout.buckets()) {
    EXPECT_EQ(bucket.size.value % (bucket.ranks() * 32), 0);
    EXPECT_EQ(bucket.size.value % 128, 0);
    EXPECT_EQ(bucket.ranks(), bucket.key.processes == ProcessGroup::dense ? 6 : 3);
    std::int64_t end = 0;
    for (const Placement& p : bucket.members) {
      EXPECT_EQ(p.offset.value % ParamLayout::alignment, 0);
      EXPECT_GE(p.offset.value, end);
      end = (p.offset + p.size).value;
      EXPECT_EQ(registry[p.param].role == Role::expert, bucket.key.processes == ProcessGroup::expert);
    }
    EXPECT_LE(end, bucket.size.value);
    std::int64_t sum = 0;
    for (int r = 0; r < bucket.ranks(); ++r) {
      EXPECT_EQ(bucket.begins[static_cast<std::size_t>(r)], sum);
      EXPECT_EQ(bucket.counts[static_cast<std::size_t>(r)] % 32, 0);
      sum += bucket.counts[static_cast<std::size_t>(r)];
    }
    EXPECT_EQ(sum, bucket.size.value);
  }
}

TEST(ParamLayout, NoCutSplitsAByteOfAnyFormat) {
  std::mt19937 random(13);
  for (int ranks : {3, 5, 6, 12, 48, 96, 256, 512, 1024}) {
    const ParamRegistry registry = odd_registry(random, 9);
    const ParamLayout layout = ParamLayout::build(registry, {ranks, ranks, 1 << 14});
    for (int id = 0; id < formats::Registry::size; ++id) {
      const WeightFormat format{DType::bf16, static_cast<FormatId>(id)};
      const std::int64_t bits = traits_of(*format.codes).bits;
      for (const Bucket& bucket : layout.buckets())
        for (std::int64_t begin : bucket.begins)
          EXPECT_EQ(data_bytes(format, ElementIndex(begin)) * 8, begin * bits) << name_of(format);
    }
  }
}

/// Parameters of three blocks between an embedding and a head; each block has a matrix, its bias and two experts.
ParamRegistry blocks_between(const TreatmentRules& rules) {
  ParamRegistry registry(rules);
  const auto add = [&](const std::string& name, Shape shape, Role role) {
    registry.add({name, shape, 1, role, {}, {name, shape, 0}});
  };
  add("embed", {40, 32}, Role::embedding);
  for (int i = 0; i < 3; ++i) {
    const ParamRegistry::InBlock block(registry, i);
    const std::string name = "layers." + std::to_string(i);
    add(name + ".norm", {32}, Role::norm);
    add(name + ".weight", {64, 32}, Role::matrix);
    add(name + ".bias", {64}, Role::bias);
    add(name + ".router", {2, 32}, Role::router);
    add_experts(registry, name + ".experts", 2, 64, 32, true);
  }
  add("norm", {32}, Role::norm);
  add("head", {40, 32}, Role::head);
  return registry;
}

std::set<std::string> with_codes(const ParamRegistry& registry) {
  std::set<std::string> names;
  for (const ParamSpec& spec : registry.specs())
    if (spec.format.codes) names.insert(spec.name);
  return names;
}

/// Rules by which the weights of some blocks, and an untied head, are stored as codes.
template <class F>
TreatmentRules coded(BlockRange blocks = {}, bool head = false) {
  Treatment treatment;
  treatment.weight = {formats::id_of<F>, formats::id_of<F>};
  TreatmentRules rules;
  rules.list.push_back({{blocks}, {}, treatment});
  if (head) rules.list.push_back({{}, {MatrixName::head}, treatment});
  return rules;
}
const TreatmentRules in_fp32{{.plain = DType::f32}};

TEST(TreatmentOf, QuantizesMatricesAndExpertsOfTheRulesBlocks) {
  using Names = std::set<std::string>;
  EXPECT_EQ(with_codes(blocks_between(in_fp32)), Names());
  EXPECT_EQ(with_codes(blocks_between(coded<formats::Nvfp4>({1, 2}))), (Names{"layers.1.weight", "layers.1.experts"}));
  EXPECT_EQ(with_codes(blocks_between(coded<formats::Nvfp4>({.first = 2}, true))),
            (Names{"layers.2.weight", "layers.2.experts", "head"}));
  const ParamRegistry plain = blocks_between(in_fp32);
  for (const ParamSpec& spec : plain.specs())
    EXPECT_EQ(spec.format, (WeightFormat{DType::f32, {}})) << spec.name;
}

// One copy of codes serves both products, or the weight is stored as values.
TEST(TreatmentOf, StoresCodesWhereBothProductsTakeOneFormat) {
  const Treatment::Format slots[] = {std::nullopt, formats::id_of<formats::Nvfp4>, formats::id_of<formats::Mxfp8>};
  for (const auto& forward : slots)
    for (const auto& dgrad : slots) {
      TreatmentRules rules;
      rules.standard.weight = {forward, dgrad};
      const ParamRegistry registry = blocks_between(rules);
      for (const ParamSpec& spec : registry.specs()) {
        const bool ruled = is_matrix(spec.role);
        EXPECT_EQ(spec.treatment.weight, ruled ? rules.standard.weight : Treatment::Weight()) << spec.name;
        EXPECT_EQ(spec.format.codes, ruled && forward == dgrad ? forward : std::nullopt) << spec.name;
      }
      EXPECT_EQ(registry.quantizes(), forward || dgrad);
    }
}

// Of rules that match a matrix the last one decides, whatever their order otherwise.
TEST(TreatmentRules, TheLastRuleThatMatchesDecides) {
  std::mt19937 random(5);
  using enum MatrixName;
  constexpr MatrixName parts[] = {attention_qkv, attention_out, mlp_up, mlp_down, head};
  for (int drawn = 0; drawn < 200; ++drawn) {
    TreatmentRules rules;
    for (int i = 0, n = static_cast<int>(random() % 5); i < n; ++i) {
      TreatmentRule rule;
      const auto below = [&](unsigned most) { return static_cast<std::int64_t>(random() % most); };
      if (random() % 2) rule.blocks.push_back({below(3), 1 + below(4)});
      if (random() % 2) rule.parts = {parts[random() % 5], parts[random() % 5]};
      rule.treatment.draws = i % 2 != 0;
      rule.treatment.weight.forward = static_cast<FormatId>(i + 1);
      rules.list.push_back(rule);
    }
    for (std::int64_t block = 0; block < 4; ++block)
      for (const MatrixName part : parts) {
        const std::int64_t of = part == head ? -1 : block;
        Treatment wanted;
        for (const TreatmentRule& rule : rules.list) {
          bool in_blocks = rule.blocks.empty(), in_parts = rule.parts.empty() && part != head;
          for (const BlockRange& range : rule.blocks) in_blocks |= of >= range.first && of < range.end;
          for (const MatrixName one : rule.parts) in_parts |= one == part;
          if (in_blocks && in_parts) wanted = rule.treatment;
        }
        EXPECT_EQ(rules.of(of, part), wanted) << drawn << ": block " << of << ", " << name_of(part);
      }
  }
}

TEST(ParamLayout, FormatsShareGroupsButNoBucket) {
  const ParamRegistry registry = blocks_between(coded<formats::Nvfp4>({.first = 1}));
  const ParamLayout layout = ParamLayout::build(registry, {4, 2, 2000});
  expect_every_element_owned_once(registry, layout);
  for (const Bucket& bucket : layout.buckets())
    for (const Placement& p : bucket.members) EXPECT_EQ(registry[p.param].format, bucket.key.format);
  // The last buckets of both formats form a group in each process group: nvfp4's of block 1, plain ones of the
  // embedding.
  std::vector<std::set<std::string>> shared;
  for (const BucketGroup& group : layout.groups()) {
    if (group.buckets.size() == 1) continue;
    shared.emplace_back();
    for (BucketId b : group.buckets) {
      const Bucket& bucket = layout.buckets()[b];
      EXPECT_EQ(bucket.key.processes, group.processes);
      shared.back().insert(std::string(name_of(bucket.key.format)) + " " + registry[bucket.members.back().param].name);
    }
  }
  EXPECT_EQ(shared, (std::vector<std::set<std::string>>{{"nvfp4 layers.1.experts", "bf16 layers.0.experts"},
                                                        {"nvfp4 layers.1.weight", "bf16 embed"}}));
}

TEST(ParamLayout, HashTellsFormatsApart) {
  const auto hash = [](const TreatmentRules& rules) {
    return ParamLayout::build(blocks_between(rules), {2, 2, 2000}).hash();
  };
  EXPECT_EQ((std::set<std::uint64_t>{hash({}), hash(in_fp32), hash(coded<formats::Nvfp4>()),
                                     hash(coded<formats::Fp8Block>()), hash(coded<formats::Nvfp4>({}, true))})
                .size(),
            5u);
}

TEST(ParamLayout, TheEndOfTheModelIsBucketZero) {
  ParamRegistry registry;
  for (int i = 0; i < 6; ++i) registry.add(vector_of("p" + std::to_string(i), 1000));
  const ParamLayout layout = ParamLayout::build(registry, {2, 2, 2000});
  ASSERT_EQ(layout.buckets().size(), 3);
  EXPECT_EQ(registry[layout.buckets()[{0}].members[0].param].name, "p5");
  EXPECT_EQ(registry[layout.buckets()[{2}].members.back().param].name, "p0");
}

TEST(ParamLayout, SingleAndDiscreteExpertsLieAlike) {
  for (std::int64_t bucket_elements : {1, 500, 100000}) {
    SCOPED_TRACE(test::shown(bucket_elements));
    ParamRegistry single, discrete;
    for (ParamRegistry* registry : {&single, &discrete}) {
      registry->add(vector_of("first", 77));
      add_experts(*registry, "up", 5, 9, 13, registry == &single);
      add_experts(*registry, "down", 5, 13, 9, registry == &single);
      registry->add(vector_of("last", 3));
    }
    const LayoutRules rules{4, 2, bucket_elements};
    const ParamLayout a = ParamLayout::build(single, rules), b = ParamLayout::build(discrete, rules);
    EXPECT_EQ(a.hash(), b.hash());
    ASSERT_EQ(a.buckets().size(), b.buckets().size());
    for (BucketId i : a.buckets().ids()) {
      ASSERT_EQ(a.buckets()[i].members.size(), b.buckets()[i].members.size());
      for (std::size_t m = 0; m < a.buckets()[i].members.size(); ++m)
        EXPECT_EQ(a.buckets()[i].members[m].offset, b.buckets()[i].members[m].offset);
    }
  }
}

// With expert parallelism each rank registers its own experts; all ranks must get the same layout hash.
TEST(ParamLayout, HashCountsExpertsFromTheFirstOneHere) {
  const auto hash_of = [](std::int64_t first, std::int64_t step) {
    ParamRegistry registry;
    registry.add(vector_of("first", 77));
    for (const std::string name : {"up", "down"})
      for (std::int64_t e = 0; e < 3; ++e) {
        const Canonical expert{name, {12, 5, 7}, (first + e * step) * 35};
        registry.add({name + std::to_string(e), {5, 7}, 1, Role::expert, {}, expert});
      }
    return ParamLayout::build(registry, {4, 2, 100}).hash();
  };
  EXPECT_EQ(hash_of(0, 1), hash_of(3, 1));
  EXPECT_EQ(hash_of(0, 1), hash_of(9, 1));
  EXPECT_NE(hash_of(0, 1), hash_of(0, 2)) << "their distances count";
}

TEST(ParamLayout, HashTellsLayoutsApart) {
  std::mt19937 random(17);
  const ParamRegistry registry = odd_registry(random, 8);
  std::set<std::uint64_t> hashes;
  for (int ranks : {1, 2, 3})
    for (std::int64_t elements : {1, 6000, 100000})
      hashes.insert(ParamLayout::build(registry, {ranks, ranks, elements}).hash());
  EXPECT_EQ(hashes.size(), 9u);
}

TEST(ParamLayout, HoldsModelsSmallerThanTheirRanks) {
  ParamRegistry registry;
  registry.add(vector_of("only", 1));
  const ParamLayout layout = ParamLayout::build(registry, {9, 9, 1 << 20});
  expect_every_element_owned_once(registry, layout);
  int empty = 0;
  for (int r = 0; r < 9; ++r) empty += layout.shard_ranges({0}, at(r, 9)).empty();
  EXPECT_EQ(empty, 8);
}

/// A padded embedding, experts and a vector.
ParamRegistry mixed_registry(bool single) {
  ParamRegistry registry;
  registry.add({"embed.tokens", {128, 4}, 1, Role::embedding, {}, {"embed.tokens", {101, 4}, 0}});
  add_experts(registry, "up", 5, 7, 11, single);
  add_experts(registry, "down", 5, 11, 7, single);
  registry.add(vector_of("norm", 7));
  return registry;
}

TEST(ParamLayout, EveryRealElementOfADatasetIsInOnePiece) {
  for (const bool single : {true, false})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const ParamRegistry registry = mixed_registry(single);
      const ParamLayout layout = ParamLayout::build(registry, {ranks, ranks, 1});
      std::map<std::string, std::vector<int>> owners;
      for (const Dataset& dataset : registry.datasets()) {
        const Canonical& canonical = registry.canonical(dataset);
        owners[canonical.name].resize(static_cast<std::size_t>(canonical.shape.elements()));
      }
      for (BucketId b : layout.buckets().ids())
        for (int r = 0; r < ranks; ++r)
          for (const ShardRange& piece : layout.shard_ranges(b, at(r, ranks)))
            for (std::int64_t i = 0; i < piece.real.value; ++i)
              ++owners[registry[piece.param].canonical.name].at(static_cast<std::size_t>(piece.canonical.value + i));
      for (const auto& [name, times] : owners)
        EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << name << " on " << ranks << " ranks";
    }
}

TEST(ParamRegistry, ADatasetIsARunOfEqualNames) {
  const auto sizes = [](const ParamRegistry& registry) {
    std::vector<std::pair<std::string, std::size_t>> list;
    for (const Dataset& dataset : registry.datasets())
      list.emplace_back(registry.canonical(dataset).name, dataset.params.size());
    return list;
  };
  using Sizes = std::vector<std::pair<std::string, std::size_t>>;
  EXPECT_EQ(sizes(mixed_registry(true)), (Sizes{{"embed.tokens", 1}, {"up", 1}, {"down", 1}, {"norm", 1}}));
  const ParamRegistry discrete = mixed_registry(false);
  EXPECT_EQ(sizes(discrete), (Sizes{{"embed.tokens", 1}, {"up", 5}, {"down", 5}, {"norm", 1}}));
  EXPECT_EQ(discrete.datasets()[2].params.front(), ParamId{6});
}

TEST(ParamRegistry, RefusesANameTwice) {
  ParamRegistry registry;
  registry.add(vector_of("a", 1));
  EXPECT_THROW(registry.add(vector_of("a", 2)), Error);
}

TEST(ParamSpec, CountsWhatExistsOutsideMemory) {
  const ParamSpec padded{"embed.tokens", {128, 4}, 1, Role::embedding, {}, {"embed.tokens", {100, 4}, 0}};
  EXPECT_EQ(padded.real_elements(), 400);
  const ParamSpec expert{"up.2", {3, 5}, 1, Role::expert, {}, {"up", {4, 3, 5}, 30}};
  EXPECT_EQ(expert.real_elements(), 15);
}

TEST(Layout, IsTheSameOnEveryCpu) {
  std::mt19937 random(17);
  std::vector<std::int64_t> places;
  for (const int ranks : {1, 6}) {
    const ParamRegistry registry = odd_registry(random, 20);
    const ParamLayout layout = ParamLayout::build(registry, {ranks, ranks == 6 ? 3 : 1, 4096});
    for (const Bucket& bucket : layout.buckets()) {
      for (const Placement& place : bucket.members)
        places.insert(places.end(), {place.param.value, place.member, place.offset.value, place.size.value});
      for (int rank = 0; rank < bucket.ranks(); ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        places.insert(places.end(), {bucket.begins[r], bucket.counts[r]});
      }
    }
  }
  test::expect_portable("layouts", places);
}

}  // namespace
}  // namespace tessera
