// A mesh of 2 x 2: expert groups of two ranks, expert-data groups of two. The experts are replicated, all on every
// rank, so that a run on it can be compared with one where all ranks share everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "app/training/loop/replicas.hpp"
#include "core/step/engine.hpp"
#include "kernels/convert/convert.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/stored.hpp"
#include "tests/support/trial.hpp"

namespace tessera {
namespace {

using namespace test;

constexpr int steps = 4;

/// Wrapper that sends zeros in place of gradients. If only ranks of position 0 contribute, the sum over the world
/// equals the sum over their expert-data group.
class Muted final : public Communicator {
 public:
  explicit Muted(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return "muted(" + inner_->name() + ")"; }
  const CollectiveLog* log() const override { return inner_->log(); }
  Pending submit(Stream& stream, const Operation& operation) override {
    if (operation.collective == Collective::all_to_all)
      for (const Exchange& exchange : operation.exchanges) clear(stream, exchange.send);
    return inner_->submit(stream, operation);
  }

 protected:
  void finish(Stream&, int) override {}
  void abandon(int) noexcept override {}

 private:
  std::unique_ptr<Communicator> inner_;
};

/// The same plan with expert groups of `expert` ranks, each of which holds all experts.
RunPlan plan_of(const RunConfig& config, int expert) {
  RunPlan plan = resolve(config, mpi().size(), mpi().rank());
  const std::uint64_t hash = plan.layout.hash();
  plan.ranks = mpi().ranks(expert);
  const auto elements = static_cast<std::int64_t>(std::ceil(config.reduce.bucket_mib * (1 << 18)));
  plan.layout = ParamLayout::build(plan.registry, {plan.ranks.world.size, plan.ranks.expert_data.size, elements});
  EXPECT_EQ(plan.layout.hash() == hash, expert == 1);
  return plan;
}

/// Some steps on a mesh with expert groups of `expert` ranks; odd ranks of the world contribute no gradients.
class ShortRun {
 public:
  ShortRun(const RunConfig& config, int expert)
      : plan_(plan_of(config, expert)), mesh_(mpi().mesh(device_, plan_.ranks, std::chrono::seconds(300))) {
    mesh_.wrap([&](std::unique_ptr<Communicator> one) -> std::unique_ptr<Communicator> {
      if (mpi().rank() % 2 == 0) return recording(std::move(one), records_);
      return std::make_unique<Muted>(recording(std::move(one), records_));
    });
    engine_ = std::make_unique<Engine>(device_, plan_, mesh_);
    tokens_.append(std::span<const std::uint8_t>(text()));
    Problems problems;
    const Windows windows =
        Windows::split(tokens_.count(), config.model.seq_len, config.data.eval_fraction, problems);
    problems.raise();
    Batches batches(config, tokens_, windows, plan_.ranks.world);
    engine_->initialise();
    for (std::int64_t step = 0; step < steps; ++step)
      reports_.push_back(engine_->report(engine_->step(batches.training(step, step * config.batch.global), {0.01f})));
    engine_->sync().unshard_all(engine_->stream());
    mesh_.log()->compare(*control_);
  }

  const std::vector<StepReport>& reports() const { return reports_; }
  const RunPlan& plan() const { return plan_; }
  const std::vector<Record>& records() const { return records_; }
  Control& control() { return *control_; }
  Device& device() { return device_; }
  Engine& engine() { return *engine_; }

  /// The stored weight converted to fp32; with fp32 weights the master itself.
  std::vector<float> weight(ParamId id) {
    const Use weight = engine_->sync().operand(engine_->stream(), id, Side::rowwise);
    std::vector<float> all;
    for (int m = 0; m < plan_.registry[id].members; ++m) {
      const Tensor member = weight->member(m).data;
      if (member.type == DType::f32) {
        const auto values = on_host<float>(device_, member);
        all.insert(all.end(), values.begin(), values.end());
      } else {
        for (const bf16 value : on_host<bf16>(device_, member)) all.push_back(static_cast<float>(value));
      }
    }
    return all;
  }

 private:
  RunPlan plan_;
  Device device_;
  TokenStream tokens_;
  std::vector<Record> records_;
  std::unique_ptr<Control> control_ = mpi().control(std::chrono::seconds(300));
  Mesh mesh_;
  std::unique_ptr<Engine> engine_;
  std::vector<StepReport> reports_;
};

TEST(Mesh, TwoByTwoTrainsToTheBitsOfFourRanks) {
  if (mpi().size() != 4) GTEST_SKIP() << "2 x 2 ranks";
  const bool contributes = mpi().rank() % 2 == 0;
  for (Compute compute : {Compute::fp32, Compute::bf16})
    for (ExpertWeights held : {ExpertWeights::single, ExpertWeights::discrete}) {
      RunConfig config = mixture(compute);
      config.model.moe->weights = held;
      ShortRun whole(config, 1), pairs(config, 2);
      for (std::size_t step = 0; step < steps; ++step) {
        const StepReport &a = whole.reports()[step], &b = pairs.reports()[step];
        // The norm counts every element once: gradients of the experts at position 1 are zero.
        EXPECT_EQ(std::bit_cast<std::uint32_t>(a.clip.norm), std::bit_cast<std::uint32_t>(b.clip.norm)) << step;
        EXPECT_GT(a.clip.norm, 0);
        for (std::size_t r : {0, 2})
          EXPECT_EQ(std::bit_cast<std::uint64_t>(a.sums[r].loss), std::bit_cast<std::uint64_t>(b.sums[r].loss)) << step;
      }
      int experts = 0;
      for (int p = 0; p < whole.plan().registry.size(); ++p) {
        const ParamSpec& spec = whole.plan().registry[{p}];
        const bool same = same_bits(whole.weight({p}), pairs.weight({p}));
        // Experts at position 1 got only their own group's gradients, which are zero.
        EXPECT_EQ(static_cast<bool>(same), contributes || spec.role != Role::expert) << spec.name;
        experts += spec.role == Role::expert;
      }
      EXPECT_GT(experts, 0);
    }
}

TEST(Mesh, ReplicasAreThoseOfABucketsOwnGroup) {
  if (mpi().size() != 4) GTEST_SKIP() << "2 x 2 ranks";
  ShortRun run(mixture(Compute::bf16), 2);
  ReplicaCheck check(run.device(), run.plan());
  ParamSync& sync = run.engine().sync();
  Stream& stream = run.engine().stream();
  EXPECT_TRUE(check.differences(stream, run.engine().sync(), run.control(), 1).empty())
      << "positions may differ in their experts";
  const auto& buckets = run.plan().layout.buckets();
  const auto expert = std::ranges::find(buckets, ProcessGroup::expert, [](const Bucket& b) { return b.key.processes; });
  const auto b = static_cast<int>(expert - buckets.begin());
  if (mpi().rank() == 3) fill(stream, stored(sync, {b}).flat(5, 1), 77);
  const Problems problems = check.differences(stream, run.engine().sync(), run.control(), 1);
  ASSERT_EQ(problems.list().size(), 1u);
  const std::string& text = problems.list().front().text;
  EXPECT_NE(text.find("bucket " + std::to_string(b) + " of rank 3 differs from rank 1's"), std::string::npos) << text;
}

// Bytes of a collective are those of its own group.
TEST(Mesh, EveryBucketTravelsInItsOwnGroup) {
  if (mpi().size() != 4) GTEST_SKIP() << "2 x 2 ranks";
  ShortRun run(mixture(Compute::bf16), 2);
  std::int64_t seen[2] = {};
  for (const Record& record : run.records()) {
    if (record.collective != Collective::all_to_all) continue;
    const BucketGroup& group = run.plan().layout.groups()[{record.group}];
    std::int64_t bytes = 0;
    for (BucketId b : group.buckets) {
      const Bucket& bucket = run.plan().layout.buckets()[b];
      EXPECT_EQ(bucket.ranks(), group.processes == ProcessGroup::dense ? 4 : 2);
      bytes += 4 * bucket.slice(run.plan().ranks) * (bucket.ranks() - 1);
    }
    EXPECT_EQ(record.bytes, bytes) << "group " << record.group;
    ++seen[static_cast<int>(group.processes)];
  }
  EXPECT_GE(seen[0], steps);
  EXPECT_GE(seen[1], steps);
}

}  // namespace
}  // namespace tessera
