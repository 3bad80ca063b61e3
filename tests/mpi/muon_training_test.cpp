// Muon and AdamW with owners of whole matrices: which settings change no bit, what state is held, and that a skipped
// step changes nothing.
#include "core/optim/muon.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unistd.h>

#include "kernels/convert/convert.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/stored.hpp"
#include "tests/support/trial.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;
using namespace test;

RunConfig muon(RunConfig config) {
  config.optimizer.matrices = MatrixRule::muon;
  config.run.steps = 3;
  return config;
}
/// A config with query, key and value of unequal sizes, and no option at its default.
RunConfig other_options() {
  RunConfig config = muon(mixture(Compute::bf16));
  config.optimizer.moments = Moments::bf16;
  config.optimizer.muon = {0.9, false, MuonCoefficients::simple, MuonScale::rms};
  return config;
}

/// The trace of a run on rank 0, without what may differ: times of collectives and buckets.
std::vector<Json> core_of(RunConfig config) {
  const auto path = std::filesystem::temp_directory_path() / ("tessera_muon_" + std::to_string(getpid()) + ".jsonl");
  config.debug.trace = path;
  config.debug.replica_hash_every = 1;
  {
    Trial run(config);
    EXPECT_EQ(std::ssize(run.train()), config.run.steps);
  }
  std::vector<Json> rows;
  if (mpi().rank() != 0) return rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    rows.push_back(Json::parse(line));
    rows.back().erase("overlapped");
    rows.back().erase("collectives");
    EXPECT_TRUE(std::isfinite(rows.back()["loss"].get<double>()));
  }
  std::filesystem::remove(path);
  EXPECT_EQ(std::ssize(rows), config.run.steps);
  return rows;
}

TEST(Muon, OverlapsRecomputationEvaluationsAndBucketsChangeNoBit) {
  for (const RunConfig& config : {muon(dense(Compute::bf16)), muon(dense(Compute::fp32)), other_options()}) {
    const std::vector<Json> rows = core_of(config);
    for (bool gather : {false, true})
      for (bool reduce : {false, true}) {
        RunConfig other = config;
        other.proof.gather_overlap = gather;
        other.proof.reduce_overlap = reduce;
        other.reduce.bucket_mib = reduce ? 25 : 0.02;  // other owners
        EXPECT_EQ(core_of(other), rows) << gather << reduce;
      }
    RunConfig other = config;
    other.recompute.mode = RecomputeMode::full;
    other.eval.every_steps = 1;
    EXPECT_EQ(core_of(other), rows) << "recomputation and evaluations";
    if (!config.model.moe) continue;
    other.model.moe->weights = ExpertWeights::discrete;
    EXPECT_EQ(core_of(other), rows) << "discrete";
  }
}

/// Names of the tensors in a slot.
std::set<std::string> held_in(const StateDict& state, const std::string& slot) {
  std::set<std::string> names;
  for (const StateTensor& tensor : state.tensors)
    if (tensor.slot == slot) names.insert(tensor.name);
  return names;
}

TEST(Muon, EachSlotHoldsTheParametersOfItsRule) {
  for (const RunConfig& config : {muon(dense(Compute::bf16)), other_options()}) {
    Trial run(config, 0);
    const StateDict state = run.training().state();
    std::set<std::string> matrices, others;
    for (const ParamSpec& spec : run.plan().registry.specs())
      (is_matrix(spec.role) ? matrices : others).insert(spec.canonical.name);
    EXPECT_FALSE(matrices.empty());
    EXPECT_EQ(held_in(state, "muon/momentum"), matrices);
    EXPECT_EQ(held_in(state, "adamw/m"), others);
    EXPECT_EQ(held_in(state, "adamw/v"), others);
    const DType type = type_of(config.optimizer.moments);
    for (const StateTensor& tensor : state.tensors) {
      EXPECT_EQ(tensor.type, tensor.slot == "model" ? DType::f32 : type) << tensor.path();
      for (const StateRange& range : tensor.ranges) EXPECT_EQ(range.values.type, tensor.type) << tensor.path();
    }
  }
}

TEST(Muon, HoldsTheMemoryThatWasPlanned) {
  for (const RunConfig& config : {muon(dense(Compute::bf16)), muon(dense(Compute::fp32)), other_options()}) {
    Trial run(config, 0);
    run.train();
    EXPECT_EQ(run.late_allocations(), 0);
    for (std::size_t c = 0; c < run.plan().memory.size(); ++c)
      EXPECT_EQ(run.device().memory()[c], run.plan().memory[c]) << name_of(static_cast<Category>(c));
  }
}

/// Bytes of all slices of a slot, or of the masters.
std::vector<std::vector<std::byte>> bytes_of(Device& device, const std::vector<Tensor>& slices) {
  std::vector<std::vector<std::byte>> all;
  for (const Tensor& slice : slices) {
    all.emplace_back(static_cast<std::size_t>(slice.bytes()));
    device.download(device.compute(), all.back().data(), slice);
  }
  return all;
}
std::vector<Tensor> slices_of(Engine& engine) {
  std::vector<Tensor> all = engine.masters().shards();
  engine.optimizers().visit_state([&](const StateSlot& slot) {
    for (const BucketSlice& slice : slot.slices) all.push_back(slice.values);
  });
  return all;
}

TEST(Muon, ASkippedStepChangesNothing) {
  RunConfig config = muon(mixture(Compute::fp32));
  config.optimizer.max_skips = 1;
  for (bool skipped : {true, false}) {
    SCOPED_TRACE(shown(skipped));
    Trial run(config, 0);
    Engine& engine = run.training().engine();
    run.training().restore([&](StateDict& state) {
      for (const StateTensor& tensor : state.tensors)
        for (const StateRange& range : tensor.ranges) {
          const bool lost = skipped && tensor.slot == "model" && tensor.role == Role::embedding;
          fill(run.device().compute(), range.values, lost ? std::numeric_limits<double>::quiet_NaN() : 0.0625);
        }
      state.counters.step = 0;
    });
    const auto before = bytes_of(run.device(), slices_of(engine));
    std::vector<MetricsRow> rows;
    if (skipped)
      EXPECT_THROW(test::all_steps(run.training(), into(rows)), Error);
    else
      EXPECT_NO_THROW(test::all_steps(run.training(), into(rows)));
    ASSERT_FALSE(rows.empty());
    EXPECT_EQ(rows.front().skipped, skipped);
    EXPECT_EQ(bytes_of(run.device(), slices_of(engine)) == before, skipped);
  }
}

/// Every bucket's weights are gathered whole, exactly once a step.
TEST(Muon, EveryGroupIsGatheredOnceAStep) {
  for (const RunConfig& config : {muon(dense(Compute::bf16)), other_options()}) {
    Trial run(config, 0);
    const RunPlan& plan = run.plan();
    std::map<int, std::int64_t> expected, reduced, gathers, reductions;
    bool owned = false, mixed = false;
    for (GroupId id : plan.layout.groups().ids()) {
      const BucketGroup& group = plan.layout.groups()[id];
      std::set<OwnerKind> kinds;
      for (BucketId b : group.buckets) {
        const Bucket& bucket = plan.layout.buckets()[b];
        kinds.insert(bucket.key.owner);
        const std::int64_t own = bucket.slice(plan.ranks);
        expected[id.value] += (bucket.size.value - own) * size_of(bucket.key.format.plain);
        reduced[id.value] += own * (bucket.ranks() - 1) * size_of(DType::f32);
      }
      owned = owned || kinds.contains(OwnerKind::whole_matrix);
      mixed = mixed || kinds.size() == 2;
    }
    EXPECT_TRUE(owned && mixed);
    for (const CollectiveCost& cost : plan.collectives) {
      if (cost.group < 0) {
        EXPECT_NE(cost.collective, Collective::all_reduce_max) << "owners of whole matrices agree on nothing";
        continue;
      }
      auto& seen = cost.collective == Collective::all_gather ? gathers : reductions;
      EXPECT_TRUE(cost.collective == Collective::all_gather || cost.collective == Collective::all_to_all);
      EXPECT_EQ(cost.bytes, cost.collective == Collective::all_gather ? expected[cost.group] : reduced[cost.group]);
      ++seen[cost.group];
    }
    const std::size_t travelling = mpi().size() > 1 ? expected.size() : 0;
    EXPECT_EQ(gathers.size(), travelling);
    EXPECT_EQ(reductions.size(), travelling);
    for (const auto& [group, times] : gathers) EXPECT_EQ(times, 1) << group;
    for (const auto& [group, times] : reductions) EXPECT_EQ(times, 1) << group;
  }
}

TEST(Muon, LearnsATextOfFiveWords) {
  RunConfig config = muon(mixture(Compute::bf16));
  config.run.steps = 60;
  config.eval.every_steps = 60;
  Trial run(config, 0);
  const std::vector<MetricsRow> rows = run.train();
  ASSERT_EQ(rows.size(), 60u);
  EXPECT_LT(*rows.back().eval_loss, 1.2);
  EXPECT_EQ(run.late_allocations(), 0);
}

TEST(ProblemsWithMuon, NameWhatIsNoMatrix) {
  const auto problems = [](Role role, Shape shape) {
    ParamRegistry registry;
    registry.add({"norm", {4}, 1, Role::norm, {}, {"norm", {4}, 0}});
    registry.add({"other", shape, 1, role, {}, {"other", shape, 0}});
    return problems_with_muon(registry).list();
  };
  EXPECT_TRUE(problems(Role::matrix, {4, 6}).empty());
  EXPECT_TRUE(problems(Role::expert, {4, 6}).empty());
  ASSERT_EQ(problems(Role::bias, {4}).size(), 1u);
  EXPECT_EQ(problems(Role::bias, {4}).front().text,
            "optimizer.matrices: nothing in this model is a matrix for muon: use adamw");
  ASSERT_EQ(problems(Role::matrix, {4, 6, 2}).size(), 1u);
  EXPECT_EQ(problems(Role::matrix, {4, 6, 2}).front().code, Exit::deck);
  EXPECT_NE(problems(Role::matrix, {4, 6, 2}).front().text.find("other [4,6,2] is neither a matrix"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
