#include <gtest/gtest.h>

#include <random>

#include "core/config/divisors.hpp"
#include "core/layout/layout.hpp"
#include "kernels/formats/registry.hpp"

/// Blocks of the gradients' wire in a layout: they are those of each matrix, whatever the layout, and have one owner.
namespace tessera {
namespace {

constexpr GradientWire wires[] = {GradientWire::fp32, GradientWire::bf16, GradientWire::mxfp8,
                                  GradientWire::fp8_block};

/// Matrices, experts and vectors of random sizes; matrices in a format, or plain.
ParamRegistry drawn(std::mt19937& random, std::optional<FormatId> format) {
  ParamRegistry registry(TreatmentRules{{.weight = {format, format}}});
  const ParamRegistry::InBlock block(registry, 0);
  const auto size = [&] { return 16 * (1 + static_cast<std::int64_t>(random() % 12)); };
  for (int i = 0; i < 3; ++i) {
    const std::string name = std::to_string(i);
    const Shape matrix{size(), size()}, expert{size(), size()};
    registry.add({"m" + name, matrix, 1, Role::matrix, {}, {"m" + name, matrix, 0}});
    for (const auto& [kind, role] : {std::pair("b", Role::bias), std::pair("n", Role::norm)})
      registry.add({kind + name, {7 + i}, 1, role, {}, {kind + name, {7 + i}, 0}});
    registry.add({"e" + name, expert, 3, Role::expert, {}, {"e" + name, {3, expert[0], expert[1]}, 0}});
  }
  registry.add({"load", {5}, 1, Role::router_load, {}, {"load", {5}, 0}});
  return registry;
}

TEST(WireLayout, NoBlockLiesAcrossACutOrTwoMatrices) {
  std::mt19937 random(1);
  for (const std::optional<FormatId> format : {std::optional<FormatId>(), std::optional(formats::id_of<formats::Nvfp4>),
                                               std::optional(formats::id_of<formats::Fp8Tensor>)})
    for (const int ranks : {1, 2, 3, 5, 6, 12, 48})
      for (const GradientWire wire : wires)
        for (const OwnerKind owner : {OwnerKind::element_sharded, OwnerKind::whole_matrix})
          for (const GatherCuts cuts : {GatherCuts::flat, GatherCuts::tile})
            for (const GatherUnit unit : {GatherUnit::bucket, GatherUnit::module}) {
              const ParamRegistry registry = drawn(random, format);
              const std::vector<std::int64_t> groups = divisors(ranks);
              LayoutRules rules{ranks, ranks, 5000, owner, cuts, unit,
                                static_cast<int>(groups[random() % groups.size()]), wire};
              const ParamLayout layout = ParamLayout::build(registry, rules);
              for (const Bucket& bucket : layout.buckets()) {
                const std::int64_t block = cut_of(bucket.key.wire);
                ASSERT_EQ(bucket.size.value % block, 0);
                for (const Placement& p : bucket.members) ASSERT_EQ(p.offset.value % block, 0);
                for (const RangesByRank& of : {RangesByRank{bucket.counts, bucket.begins}, bucket.shards})
                  for (std::size_t r = 0; r < of.counts.size(); ++r) {
                    ASSERT_EQ(of.begins[r] % block, 0) << "wire " << static_cast<int>(wire) << ", " << ranks;
                    ASSERT_EQ(of.counts[r] % block, 0) << "wire " << static_cast<int>(wire) << ", " << ranks;
                  }
                if (traits_of(bucket.key.wire).block == 0) continue;
                for (std::size_t r = 0; r < bucket.shards.counts.size(); ++r) {
                  ASSERT_EQ(bucket.block_shards.counts[r] * block, bucket.shards.counts[r]);
                  ASSERT_EQ(bucket.block_shards.begins[r] * block, bucket.shards.begins[r]);
                }
              }
            }
}

TEST(WireLayout, KeptGradientsAndCountsTravelInFp32) {
  std::mt19937 random(2);
  const ParamRegistry registry = drawn(random, {});
  LayoutRules rules{2, 2, 5000};
  rules.wire = GradientWire::mxfp8;
  const auto wire_of = [&](const ParamLayout& layout, const std::string& name) {
    for (const Bucket& bucket : layout.buckets())
      for (const Placement& p : bucket.members)
        if (registry[p.param].name == name) return bucket.key.wire;
    return GradientWire::bf16;
  };
  const ParamLayout all = ParamLayout::build(registry, rules);
  for (const char* name : {"m0", "b1", "n2", "e0"}) EXPECT_EQ(wire_of(all, name), GradientWire::mxfp8);
  EXPECT_EQ(wire_of(all, "load"), GradientWire::fp32) << "a count is exact";
  rules.keep = {KeptGradients::norms, KeptGradients::biases};
  const ParamLayout kept = ParamLayout::build(registry, rules);
  for (const char* name : {"b1", "n2", "load"}) EXPECT_EQ(wire_of(kept, name), GradientWire::fp32);
  for (const char* name : {"m0", "e0"}) EXPECT_EQ(wire_of(kept, name), GradientWire::mxfp8);
  EXPECT_NE(all.hash(), kept.hash());
}

}  // namespace
}  // namespace tessera
