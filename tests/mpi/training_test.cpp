#include "app/training/loop/training.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/stored.hpp"
#include "tests/support/tolerances.hpp"
#include "tests/support/trial.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;
using namespace test;

struct Outcome {
  std::vector<MetricsRow> rows;
  std::vector<Json> trace;  ///< on rank 0
  std::int64_t gathers = 0, reductions = 0;  ///< numbers that overlapped with computation
};

Outcome outcome_of(RunConfig config) {
  const auto path = std::filesystem::temp_directory_path() / ("tessera_trace_" + std::to_string(getpid()) + ".jsonl");
  config.debug.trace = path;
  Outcome outcome;
  {
    Trial run(config);
    EXPECT_GE(run.plan().layout.groups().size(), 6);
    outcome.rows = run.train();
    outcome.gathers = run.training().engine().sync().overlapped().gathers;
    outcome.reductions = run.training().engine().sync().overlapped().reductions;
  }
  if (mpi().rank() == 0) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      Json row = Json::parse(line);
      row.erase("overlapped");
      // Overlap may change when a collective begins, never which collectives there are.
      std::vector<Json> collectives = row["collectives"];
      std::sort(collectives.begin(), collectives.end());
      row["collectives"] = collectives;
      outcome.trace.push_back(row);
    }
    std::filesystem::remove(path);
    EXPECT_EQ(std::ssize(outcome.trace), config.run.steps);
  }
  EXPECT_EQ(std::ssize(outcome.rows), config.run.steps);
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_FALSE(a.rows.empty());
  ASSERT_EQ(a.rows.size(), b.rows.size()) << what;
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    ASSERT_TRUE(std::isfinite(a.rows[i].loss)) << what;
    ASSERT_EQ(a.rows[i].loss, b.rows[i].loss) << what << ", step " << i + 1;
    ASSERT_EQ(a.rows[i].grad_norm, b.rows[i].grad_norm) << what << ", step " << i + 1;
  }
  ASSERT_EQ(a.trace.size(), b.trace.size()) << what;
  for (std::size_t i = 0; i < a.trace.size(); ++i) ASSERT_EQ(a.trace[i], b.trace[i]) << what << ", step " << i + 1;
}

TEST(Training, OverlapsChangeNoBit) {
  for (RunConfig config : models()) {
    config.proof.gather_overlap = config.proof.reduce_overlap = false;
    const Outcome off = outcome_of(config);
    EXPECT_EQ(off.gathers, 0);
    std::vector<std::pair<bool, bool>> overlaps{{true, true}};
    if (config.model.moe.has_value() == (config.precision.compute == Compute::fp32))  // one of each kind of model
      overlaps.insert(overlaps.end(), {{true, false}, {false, true}});
    for (const auto& [gather, reduce] : overlaps) {
      config.proof.gather_overlap = gather;
      config.proof.reduce_overlap = reduce;
      const Outcome on = outcome_of(config);
      expect_same(off, on, "overlaps");
      const bool many = mpi().size() > 1;
      EXPECT_EQ(on.gathers >= 5, many && gather) << on.gathers;
      EXPECT_EQ(on.reductions >= 5, many && reduce) << on.reductions;
    }
  }
}

template <class T>
std::vector<T> rounded(const std::vector<float>& masters) {
  std::vector<T> all;
  for (float x : masters) all.push_back(T(x));
  return all;
}

/// Expects that this rank's slice of every stored weight is its master, rounded.
void expect_rounded_masters(Device& device, Engine& engine, const RunPlan& plan, const std::string& what) {
  for (BucketId b : plan.layout.buckets().ids()) {
    const Bucket& bucket = plan.layout.buckets()[b];
    if (bucket.slice(plan.ranks) == 0) continue;
    const Tensor slice = bucket.slice(stored(engine.sync(), b), plan.ranks);
    const auto masters = test::on_host<float>(device, engine.masters().shard(b));
    if (slice.type == DType::bf16) {
      EXPECT_TRUE(test::same_bits(test::on_host<bf16>(device, slice), rounded<bf16>(masters))) << what << b.value;
    } else {
      EXPECT_TRUE(test::same_bits(test::on_host<float>(device, slice), masters)) << what << b.value;
    }
  }
}

// Tessera's promise: on every rank, after every step, the stored weight is Q(bf16(master)).
TEST(Training, StoredWeightsAreTheRoundedMastersAfterEveryStep) {
  RunConfig owned = mixture(Compute::bf16);
  owned.optimizer.matrices = MatrixRule::muon;
  for (RunConfig config : {dense(Compute::fp32), mixture(Compute::bf16), owned}) {
    SCOPED_TRACE(shown(config.precision.compute, config.sharding, config.model.moe.has_value()));
    config.eval.every_steps = 3;          // an evaluation leaves weights Ready, a step leaves them Staged
    config.debug.replica_hash_every = 1;  // checks replicas, so that each rank need check only its own slice
    Trial run(config, 0);
    Engine& engine = run.training().engine();
    std::int64_t steps = 0;
    std::vector<MetricsRow> rows;
    test::all_steps(run.training(), into(rows), [&](std::int64_t step) {
      engine.sync().unshard_all(engine.stream());
      expect_rounded_masters(run.device(), engine, run.plan(), "step " + std::to_string(step) + ", bucket ");
      ++steps;
      return Proceed::go_on;
    });
    EXPECT_EQ(steps, config.run.steps + 1);
  }
}

TEST(Training, EvaluationChangesNoBit) {
  for (RunConfig config : {dense(Compute::fp32), mixture(Compute::bf16)}) {
    SCOPED_TRACE(shown(config.precision.compute, config.sharding, config.model.moe.has_value()));
    const Outcome never = outcome_of(config);
    config.eval.every_steps = 1;
    const Outcome always = outcome_of(config);
    expect_same(never, always, "evaluation after every step");
    for (const MetricsRow& row : always.rows) EXPECT_TRUE(row.eval_loss && std::isfinite(*row.eval_loss));
    for (const MetricsRow& row : never.rows) EXPECT_FALSE(row.eval_loss);
  }
}

TEST(Training, SingleAndDiscreteExpertsAreTheSameBits) {
  for (bool fused : {false, true})
    for (Compute compute : {Compute::bf16, Compute::fp32}) {
      RunConfig config = mixture(compute);
      config.precision.fuse_wgrad = fused;
      const Outcome single = outcome_of(config);
      config.model.moe->weights = ExpertWeights::discrete;
      expect_same(single, outcome_of(config), "single and discrete");
    }
}

TEST(Training, RecomputationChangesNoBit) {
  using enum RecomputeModule;
  for (RunConfig config : {dense(Compute::bf16), mixture(Compute::bf16)}) {
    const Outcome none = outcome_of(config);
    config.recompute.mode = RecomputeMode::full;
    expect_same(none, outcome_of(config), "full");
    config.recompute.mode = RecomputeMode::selective;
    using Modules = std::vector<std::vector<RecomputeModule>>;
    for (const std::vector<RecomputeModule>& modules :
         config.model.moe ? Modules{{moe}, {norm}, {attention, mlp, norm, moe}} : Modules{{attention}, {mlp}}) {
      config.recompute.modules = modules;
      expect_same(none, outcome_of(config), "selective");
    }
  }
}

TEST(Training, TheSameRunGivesTheSameBits) {
  const RunConfig config = mixture(Compute::bf16);
  expect_same(outcome_of(config), outcome_of(config), "twice");
}

TEST(Training, EveryStepMovesEveryTensor) {
  RunConfig config = mixture(Compute::fp32);
  config.optimizer.min_lr = 0.001;  // else the last step's rate is 0
  const Outcome run = outcome_of(config);
  for (std::size_t i = 1; i < run.trace.size(); ++i)
    for (const auto& [name, digest] : run.trace[i]["masters"].items()) {
      EXPECT_NE(digest, run.trace[i - 1]["masters"][name]) << name;
      EXPECT_NE(run.trace[i]["weights"][name], run.trace[i - 1]["weights"][name]) << name;
    }
}

TEST(Training, LearnsATextOfFiveWords) {
  RunConfig config = mixture(Compute::bf16);
  config.run.steps = 60;
  config.eval.every_steps = 60;
  Trial run(config, 0);
  const std::vector<MetricsRow> rows = run.train();
  ASSERT_EQ(rows.size(), 60u);
  EXPECT_NEAR(rows.front().loss, std::log(256.0), tolerances::untrained_loss);
  EXPECT_LT(*rows.back().eval_loss, 1.2);
  EXPECT_EQ(run.late_allocations(), 0);
}

// Both runs are long enough for one capture of a CUDA graph, which waits for work under way.
TEST(Training, WaitsForReportsAlone) {
  if (Trial(mixture(Compute::bf16), 0).staged()) GTEST_SKIP() << "ranks share a GPU: each collective waits";
  const auto waits_of = [](std::int64_t steps) {
    RunConfig config = mixture(Compute::bf16);
    config.run.steps = steps;
    config.optimizer.schedule = RateSchedule::constant;
    Trial run(config, 0);
    run.train();
    EXPECT_EQ(run.late_allocations(), 0);
    std::map<std::string, std::int64_t> waits;
    for (const RegionTime& region : run.device().timeline().regions()) waits[name_of(region.name)] = region.waits;
    return waits;
  };
  std::map<std::string, std::int64_t> few = waits_of(9), many = waits_of(15);
  EXPECT_EQ(many["report"] - few["report"], 6);
  few.erase("report");
  many.erase("report");
  EXPECT_EQ(many, few);
}

/// Rows of a run, and digests of its state at the end: weights, masters, moments.
struct Held {
  std::vector<MetricsRow> rows;
  std::vector<std::uint64_t> digests;
  std::uint64_t collectives = 0;
  std::int64_t replays = 0;
  bool on_streams = false;
};

/// `boundary` is called between steps.
Held held_by(const RunConfig& config, const std::function<void(Training&, std::int64_t)>& boundary = {}) {
  Trial run(config, 0);
  Held held;
  test::all_steps(run.training(), into(held.rows), [&](std::int64_t step) {
    if (boundary) boundary(run.training(), step);
    return Proceed::go_on;
  });
  EXPECT_EQ(run.late_allocations(), 0);
  Engine& engine = run.training().engine();
  std::vector<Tensor> all = engine.masters().shards();
  engine.optimizers().visit_state([&](const StateSlot& slot) {
    for (const BucketSlice& slice : slot.slices) all.push_back(slice.values);
  });
  engine.sync().visit_planes([&](const Plane& plane) { all.push_back(plane.values); });
  const Tensor sums = run.device().allocate(Category::staging, DType::u64, {std::ssize(all)});
  clear(engine.stream(), sums);
  for (std::size_t i = 0; i < all.size(); ++i) digest(engine.stream(), sums.as<std::uint64_t>() + i, all[i], 0);
  held.digests.resize(all.size());
  run.device().download(engine.stream(), held.digests.data(), sums);
  if (const CollectiveLog* log = run.mesh().log()) held.collectives = log->chain();
  held.replays = engine.replays();
  held.on_streams = run.device().compute().native() && run.mesh().on_streams();
  return held;
}

void expect_same(const Held& eager, const Held& other, const std::string& what) {
  ASSERT_FALSE(eager.rows.empty());
  ASSERT_EQ(eager.rows.size(), other.rows.size()) << what;
  for (std::size_t i = 0; i < eager.rows.size(); ++i) {
    ASSERT_TRUE(std::isfinite(eager.rows[i].loss) && std::isfinite(eager.rows[i].grad_norm)) << what;
    EXPECT_EQ(eager.rows[i].loss, other.rows[i].loss) << what << ", step " << i + 1;
    EXPECT_EQ(eager.rows[i].grad_norm, other.rows[i].grad_norm) << what << ", step " << i + 1;
    EXPECT_EQ(eager.rows[i].eval_loss, other.rows[i].eval_loss) << what << ", step " << i + 1;
  }
  EXPECT_EQ(eager.digests, other.digests) << what;
  EXPECT_EQ(eager.collectives, other.collectives) << what;
}

// The first two steps run eagerly, the third is captured and run, later ones are replays. Exceptions are steps 5 to 8,
// which are profiled, and steps that follow an evaluation. An evaluation leaves weights Ready, where a step leaves them
// Staged.
TEST(Training, AReplayedStepIsTheSameBits) {
  constexpr std::int64_t steps = 13;
  for (RunConfig config : {dense(Compute::fp32), mixture(Compute::bf16)})
    for (const std::int64_t micro : {1, 3}) {
      SCOPED_TRACE(shown(config.precision.compute, config.sharding, config.model.moe.has_value(), micro));
      if (12 / mpi().size() % micro != 0) continue;
      const bool evaluated = (micro == 1) == (config.precision.compute == Compute::bf16);
      config.run.steps = steps;
      config.batch.micro = micro;
      config.eval.every_steps = evaluated ? 4 : 0;
      config.proof.graph = false;
      const Held eager = held_by(config);
      EXPECT_EQ(eager.replays, 0);
      config.proof.graph = true;
      const Held replayed = held_by(config);
      expect_same(eager, replayed, "replayed");
      // Evaluations follow steps 4, 8, 12 and 13, so steps 9 and 13 run eagerly.
      EXPECT_EQ(replayed.replays, replayed.on_streams ? steps - 7 - (evaluated ? 2 : 0) : 0);
    }
}

TEST(Training, ReplaysGoWithOverlapsAndWithWhatReadsTheStateBetween) {
  RunConfig config = mixture(Compute::bf16);
  config.run.steps = 12;
  for (bool overlap : {false, true}) {
    SCOPED_TRACE(shown(overlap));
    config.proof.gather_overlap = config.proof.reduce_overlap = overlap;
    config.proof.graph = false;
    const Held eager = held_by(config);
    config.proof.graph = true;
    const Held saved = held_by(config, [](Training& training, std::int64_t step) {
      if (step == 9) training.state();
    });
    expect_same(eager, saved, "saved");
    EXPECT_EQ(saved.replays, saved.on_streams ? 5 : 0);
    const Held settled = held_by(config, [](Training& training, std::int64_t step) {
      if (step == 9) training.engine().sync().unshard_all(training.engine().stream());
    });
    expect_same(eager, settled, "settled");
    EXPECT_EQ(settled.replays, settled.on_streams ? (overlap ? 4 : 5) : 0);
  }
}

// No replays with a trace, which observes a step from inside, on the host.
TEST(Training, ATraceRunsEveryStepAsItIs) {
  RunConfig config = dense(Compute::bf16);
  config.run.steps = 5;
  const Held bare = held_by(config);
  config.proof.graph = true;
  const Outcome traced = outcome_of(config);
  ASSERT_EQ(traced.rows.size(), bare.rows.size());
  for (std::size_t i = 0; i < bare.rows.size(); ++i) EXPECT_EQ(traced.rows[i].loss, bare.rows[i].loss);
}

TEST(Training, HoldsTheMemoryThatWasPlanned) {
  for (const RunConfig& config : models()) {
    Trial run(config, 0);
    run.train();
    EXPECT_EQ(run.late_allocations(), 0);
    for (std::size_t c = 0; c < run.plan().memory.size(); ++c)
      EXPECT_EQ(run.device().memory()[c], run.plan().memory[c]) << name_of(static_cast<Category>(c));
  }
}

TEST(Training, SkipsStepsThatAreNotFiniteThenGivesUp) {
  RunConfig config = dense(Compute::fp32);
  config.run.steps = 20;
  config.optimizer.lr = 1e3;
  config.optimizer.weight_decay = 1e3;  // masters grow by a factor of a million in each step
  config.optimizer.warmup_steps = 0;
  config.optimizer.max_skips = 3;
  std::vector<MetricsRow> rows;
  Trial run(config, 0);
  try {
    test::all_steps(run.training(), into(rows));
    FAIL() << "weights without bound should have ended the run";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::numerical);
  }
  ASSERT_GE(rows.size(), 3u);
  EXPECT_FALSE(rows.front().skipped);
  for (std::size_t i = 1; i <= 3; ++i) EXPECT_TRUE(rows[rows.size() - i].skipped) << "the row of each is there";
}

TEST(Training, SkippedStepsBeforeARestartCount) {
  RunConfig config = dense(Compute::fp32);
  config.run.steps = 20;
  config.optimizer.max_skips = 3;
  Trial run(config, 0);
  run.training().restore([&](StateDict& state) {
    for (const StateTensor& tensor : state.tensors)
      for (const StateRange& range : tensor.ranges)
        fill(run.device().compute(), range.values, std::numeric_limits<double>::quiet_NaN());
    state.counters.step = 5;
    state.counters.skips_in_a_row = 2;
  });
  std::vector<MetricsRow> rows;
  EXPECT_THROW(test::all_steps(run.training(), into(rows)), Error);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows.front().step, 6);
  EXPECT_TRUE(rows.front().skipped);
}

TEST(Training, ReplicaCheckFindsOneFlippedBit) {
  RunConfig config = dense(Compute::bf16);
  config.debug.replica_hash_every = 1;
  Trial run(config, 0);
  EXPECT_NO_THROW(run.train());
  if (mpi().size() == 1) return;
  ReplicaCheck check(run.device(), run.plan());
  ParamSync& sync = run.training().engine().sync();
  Stream& stream = run.device().compute();
  EXPECT_TRUE(check.differences(stream, run.training().engine().sync(), run.control(), 1).empty());
  if (mpi().rank() == mpi().size() - 1) {
    const Tensor one = test::stored(sync, {2}).flat(5, 1);
    bf16 value;
    run.device().download(stream, &value, one);
    value.bits ^= 1;
    run.device().upload(stream, one, &value);
  }
  const Problems problems = check.differences(stream, run.training().engine().sync(), run.control(), 1);
  ASSERT_EQ(problems.list().size(), 1u);
  EXPECT_NE(problems.list().front().text.find("bucket 2 of rank " + std::to_string(mpi().size() - 1)),
            std::string::npos);
}

TEST(Training, ReplicasThatPartEndTheRunOnEveryRank) {
  if (mpi().size() == 1) return;
  RunConfig config = dense(Compute::bf16);
  config.debug.replica_hash_every = 2;
  Trial run(config, 0);
  ParamSync& sync = run.training().engine().sync();
  const bool odd = mpi().rank() == mpi().size() - 1;
  const auto flip_a_bit = [&](Stream& stream, const Plane& array) {
    if (!odd || array.bucket != BucketId{1}) return;
    bf16 value;
    const Tensor first = array.values.flat(0, 1);
    run.device().download(stream, &value, first);
    value.bits ^= 1;
    run.device().upload(stream, first, &value);
  };
  sync.observe(flip_a_bit);  // damages a gathered weight, as faulty memory would
  try {
    run.train();
    FAIL() << "nobody saw it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::internal);
    EXPECT_NE(std::string(error.what()).find("step 2: bucket 1 of rank " + std::to_string(mpi().size() - 1)),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera
