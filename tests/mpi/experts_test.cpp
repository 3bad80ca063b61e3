// Expert parallelism: which settings change no bit, which results equal those without expert parallelism, and that no
// token is dropped. TESSERA_MATRIX=whole tries every change by itself, in every size of expert groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unistd.h>

#include "app/training/loop/generation.hpp"
#include "core/model/layers/token_dispatcher.hpp"
#include "core/plan/recorder.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/tolerances.hpp"
#include "tests/support/trial.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;
using namespace test;

/// A model with 8 experts, or 6 if 3 ranks share them.
RunConfig spread(RunConfig config, std::int64_t expert) {
  config.model.moe->experts = mpi().size() == 3 ? 6 : 8;
  config.parallel = {};
  config.parallel.expert = expert;
  derive(config);
  return config;
}

/// Every size above one of expert groups that divides the number of ranks.
std::vector<std::int64_t> groups() {
  std::vector<std::int64_t> sizes;
  for (std::int64_t p : {2, 3, 4})
    if (mpi().size() % p == 0) sizes.push_back(p);
  return sizes;
}

/// A mixture-of-experts model whose sizes every recipe takes.
RunConfig coded(RecipeName recipe) {
  RunConfig config = base(Compute::bf16);
  config.run.steps = 3;
  config.model.hidden = 64;
  config.model.seq_len = 32;
  config.model.norm = Norm::rms;
  config.model.activation = Activation::swiglu;
  config.model.ffn = std::int64_t{96};
  config.model.moe = MoeConfig{};
  config.model.moe->top_k = 2;
  config.reduce.bucket_mib = 0.05;
  config.precision.recipe = recipe;
  return config;
}

struct Outcome {
  std::vector<MetricsRow> rows;
  std::vector<Json> trace;  ///< on rank 0; without the times of collectives
};

/// `weights`: whether the outcome includes digests of stored weights.
Outcome outcome_of(RunConfig config, bool weights = true, int delay_us = 300) {
  const auto path = std::filesystem::temp_directory_path() / ("tessera_experts_" + std::to_string(getpid()) + ".jsonl");
  config.debug.trace = path;
  config.debug.replica_hash_every = 1;
  Outcome outcome;
  {
    Trial run(config, delay_us);
    outcome.rows = run.train();
    EXPECT_EQ(run.late_allocations(), 0);
    for (std::size_t c = 0; c < run.plan().memory.size(); ++c)
      EXPECT_EQ(run.device().memory()[c], run.plan().memory[c]) << name_of(static_cast<Category>(c));
  }
  if (mpi().rank() == 0) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      Json& row = outcome.trace.emplace_back(Json::parse(line));
      for (const char* key : {"overlapped", "collectives", "quantize"}) row.erase(key);
      if (!weights) row.erase("weights");
    }
    std::filesystem::remove(path);
    EXPECT_EQ(std::ssize(outcome.trace), config.run.steps);
  }
  for (const MetricsRow& row : outcome.rows) EXPECT_TRUE(std::isfinite(row.loss) && std::isfinite(row.grad_norm));
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_FALSE(a.rows.empty());
  ASSERT_EQ(a.rows.size(), b.rows.size()) << what;
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    ASSERT_EQ(a.rows[i].loss, b.rows[i].loss) << what << ", step " << i + 1;
    ASSERT_EQ(a.rows[i].grad_norm, b.rows[i].grad_norm) << what << ", step " << i + 1;
  }
  ASSERT_EQ(a.trace, b.trace) << what;
}

/// Digest over all ranks of every dataset of a run's state.
std::vector<std::uint64_t> state_of(Trial& run) {
  const StateDict state = run.training().state();
  std::vector<std::uint64_t> sums;
  for (const StateTensor& tensor : state.tensors) {
    const Tensor sum = on_device(run.device(), std::vector<std::uint64_t>{0});
    for (const StateRange& range : tensor.ranges)
      digest(run.device().compute(), sum.as<std::uint64_t>(), range.values, static_cast<std::uint64_t>(range.first));
    sums.push_back(on_host<std::uint64_t>(run.device(), sum).front());
  }
  run.control().sum(sums.data(), static_cast<int>(sums.size()));
  return sums;
}

/// That of the masters with which a run begins, and of other state that is 0.
std::vector<std::uint64_t> masters_of(const RunConfig& config) {
  Trial run(config, 0);
  run.training().initialise([](StateDict&) {});
  return state_of(run);
}

/// The experts chosen on every rank of the world, slot by slot.
std::vector<std::vector<std::int32_t>> chosen_by_all(const std::vector<std::int32_t>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]);
  std::vector<std::vector<std::int32_t>> all;
  for (const std::string& one : mpi().control(std::chrono::seconds(300))->gather(bytes)) {
    all.emplace_back(one.size() / sizeof mine[0]);
    std::memcpy(all.back().data(), one.data(), one.size());
  }
  return all;
}

/// A small layer on every rank: its tokens, routed, and the way of their rows.
struct SmallLayer {
  static constexpr std::int64_t tokens = 10, columns = 3;

  SmallLayer(std::int64_t p, std::int64_t multiple, ExpertRows way)
      : mesh(mpi().mesh(device, mpi().ranks(static_cast<int>(p)), std::chrono::seconds(300))),
        ranks(mesh.ranks()),
        moe{.experts = 2 * p, .top_k = 2, .group = ranks.experts, .rows = way},
        first_token(ranks.world.rank * tokens),
        rows(moe, 5, multiple),
        exchange(device, mesh.experts(), moe.experts),
        memory(device.shared(Category::activations, 1 << 20)),
        arena(static_cast<std::byte*>(memory.bytes.data), memory.bytes.bytes()),
        none(registry),
        call{{device.compute(), none, nullptr, arena, nullptr, nullptr, {}, &exchange}, 1, {}, first_token} {
    if (moe.by_peers()) exchange.reach(memory);
    saved = rows.place(arena, tokens, DType::f32);
    const auto seed = static_cast<std::uint64_t>(7 + ranks.world.rank);
    route(device.compute(), arena, rows.router_shape(tokens), saved.routing,
          on_device(device, Shape{tokens, moe.experts}, uniform<float>(tokens * moe.experts, seed, -2, 2)));
  }

  Device device;
  Mesh mesh;
  const Ranks& ranks;
  MoeShape moe;
  std::int64_t first_token;
  TokenDispatcher rows;
  RowExchange exchange;
  SharedMemory memory;
  Arena arena;
  ParamRegistry registry;
  UsageRecorder none;
  Call call;
  TokenDispatcher::Saved saved;
};

/// What stands in the rows of a rank's experts.
struct Rows {
  std::vector<float> values;
  std::vector<std::int64_t> numbers;
  std::vector<std::int32_t> offsets{0};
};

/// Rows sorted by expert, then source rank, then token, and numbered by their position in the global batch.
Rows sorted_rows(SmallLayer& layer, std::int64_t multiple, std::int64_t most) {
  const MoeShape& moe = layer.moe;
  const auto all = chosen_by_all(on_host<std::int32_t>(layer.device, layer.saved.routing.expert));
  Rows wanted;
  const auto add_gap = [&] {
    wanted.values.insert(wanted.values.end(), SmallLayer::columns, 0);
    wanted.numbers.push_back(0);
  };
  for (std::int64_t e = moe.first(); e < moe.first() + moe.held(); ++e) {
    const std::int64_t first = layer.ranks.world.rank - layer.ranks.experts.rank;
    for (std::int64_t r = first; r < first + moe.group.size; ++r)
      for (std::int64_t slot = 0; slot < SmallLayer::tokens * moe.top_k; ++slot) {
        if (all[static_cast<std::size_t>(r)][static_cast<std::size_t>(slot)] != e) continue;
        const std::int64_t token = r * SmallLayer::tokens + slot / moe.top_k;
        for (std::int64_t c = 0; c < SmallLayer::columns; ++c)
          wanted.values.push_back(static_cast<float>(100 * (token + 1) + c));
        wanted.numbers.push_back(token * moe.top_k + slot % moe.top_k);
      }
    while (std::ssize(wanted.numbers) % multiple != 0) add_gap();
    wanted.offsets.push_back(static_cast<std::int32_t>(wanted.numbers.size()));
  }
  while (std::ssize(wanted.numbers) < most) add_gap();
  return wanted;
}

/// Sends rows of a small layer to the experts and back, and their gradients.
void expect_rows_arrive(std::int64_t p, std::int64_t multiple, ExpertRows way) {
  SmallLayer layer(p, multiple, way);
  auto& [device, mesh, ranks, moe, first_token, rows, exchange, memory, arena, registry, none, call, saved] = layer;
  Stream& stream = device.compute();
  const Shape of_tokens{SmallLayer::tokens, SmallLayer::columns};
  const Shape of_slots{SmallLayer::tokens * moe.top_k, SmallLayer::columns};
  std::vector<float> values;
  for (std::int64_t m = 0; m < SmallLayer::tokens; ++m)
    for (std::int64_t c = 0; c < SmallLayer::columns; ++c)
      values.push_back(static_cast<float>(100 * (first_token + m + 1) + c));
  const Tensor x = on_device(device, of_tokens, values), sent = on_device(device, of_slots, std::vector<float>(60));
  const Tensor all = arena.temp(DType::f32, {rows.most(SmallLayer::tokens), SmallLayer::columns});
  rows.finish_dispatch(call, saved, rows.start_dispatch(call, saved, all, x));
  const std::int64_t in_use = rows.rows(saved);
  const Tensor theirs = all.row_range(0, in_use), numbers = arena.temp(DType::i64, {in_use});
  // Rows behind the last expert's are zero, unless nobody reads them.
  const std::int64_t filled =
      rows.rows_end(call, saved) ? on_host<std::int32_t>(device, saved.arrival.offsets).back() : in_use;
  const Rows wanted = sorted_rows(layer, multiple, filled);
  ASSERT_FALSE(wanted.numbers.empty());
  EXPECT_EQ(on_host<float>(device, theirs.row_range(0, filled)), wanted.values);
  EXPECT_EQ(on_host<std::int32_t>(device, saved.arrival.offsets), wanted.offsets);

  permute_forward(stream, sent, x, saved.routing);
  const Tensor answers = arena.temp(DType::f32, of_slots), y = arena.temp(DType::f32, of_tokens);
  const Tensor sum = arena.temp(DType::f32, of_tokens);
  rows.combine(call, saved, y, answers, theirs, x);
  combine_forward(stream, sum, sent, saved.routing, x);
  EXPECT_EQ(on_host<float>(device, answers), on_host<float>(device, sent));
  EXPECT_EQ(on_host<float>(device, y), on_host<float>(device, sum));

  const Tensor dweight = arena.temp(DType::f32, saved.routing.weight.shape);
  const Tensor product = arena.temp(DType::f32, dweight.shape);
  const TokenDispatcher::CombineBackward of{theirs, numbers, dweight, x, answers};
  rows.finish_dispatch(call, saved, rows.start_combine_backward(call, saved, of));
  EXPECT_EQ(on_host<std::int64_t>(device, numbers.flat(0, filled)), wanted.numbers);
  rows.finish_dispatch_backward(call, saved, y, x, rows.start_dispatch_backward(call, saved, y, theirs, x));
  combine_backward(stream, sent, product, x, answers, saved.routing);
  permute_backward(stream, sum, sent, saved.routing, x);
  EXPECT_EQ(on_host<float>(device, dweight), on_host<float>(device, product));
  EXPECT_EQ(on_host<float>(device, y), on_host<float>(device, sum));
  mesh.log()->compare(*mpi().control(std::chrono::seconds(300)));
}

/// Whether ranks reach each other's memory: those on a host, or with a GPU each.
bool rows_move_in_memory() {
  Device device;
  return mpi().mesh(device, mpi().ranks(), std::chrono::seconds(300)).world().name().find("staged(") ==
         std::string::npos;
}
std::vector<ExpertRows> ways() {
  static const bool both = rows_move_in_memory();
  return both ? std::vector{ExpertRows::exchange, ExpertRows::peers} : std::vector{ExpertRows::exchange};
}

TEST(Experts, RowsTravelToTheirExpertsAndBack) {
  for (std::int64_t p : groups())
    for (std::int64_t multiple : {1, 16})
      for (const ExpertRows way : ways()) {
        SCOPED_TRACE(shown(p, multiple, name_of(way)));
        expect_rows_arrive(p, multiple, way);
      }
}

TEST(Experts, BeginAlikeInEveryGroup) {
  for (ExpertWeights weights : {ExpertWeights::single, ExpertWeights::discrete}) {
    RunConfig config = mixture(Compute::fp32);
    config.model.moe->weights = weights;
    const auto whole = masters_of(spread(config, 1));
    for (std::int64_t p : groups()) EXPECT_EQ(masters_of(spread(config, p)), whole) << p;
  }
}

// Not bit for bit: an expert's gradient sums rows of all ranks, in another order.
TEST(Experts, TrainLikeOneGroup) {
  RunConfig config = mixture(Compute::fp32);
  config.run.steps = 10;
  const Outcome whole = outcome_of(spread(config, 1), false);
  for (std::int64_t p : groups()) {
    const Outcome parts = outcome_of(spread(config, p), false);
    ASSERT_EQ(parts.rows.size(), whole.rows.size());
    for (std::size_t i = 0; i < whole.rows.size(); ++i) {
      const auto& [found, wanted] = std::tie(parts.rows[i], whole.rows[i]);
      EXPECT_NEAR(found.loss, wanted.loss, tolerances::fp32_order * wanted.loss) << "step " << i + 1;
      EXPECT_NEAR(found.grad_norm, wanted.grad_norm, tolerances::fp32_order * wanted.grad_norm) << i + 1;
      EXPECT_FALSE(whole.rows[i].expert_rows);
      const double rows = parts.rows[i].expert_rows.value_or(-1);
      EXPECT_TRUE(rows >= 1 && rows <= static_cast<double>(p)) << rows;
    }
  }
}

/// Whether to test the whole matrix (TESSERA_MATRIX=whole): each case by itself, in groups of every size. Otherwise all
/// cases are combined, in groups of the largest size.
bool whole_matrix() {
  const char* const asked = std::getenv("TESSERA_MATRIX");
  return asked != nullptr && std::string(asked) == "whole";
}
std::vector<std::int64_t> tried_groups() {
  const std::vector<std::int64_t> all = groups();
  return whole_matrix() || all.empty() ? all : std::vector{all.back()};
}
/// All recipes in the whole matrix; otherwise some, which depend on the number of ranks, so that runs with even and odd
/// numbers cover all.
std::vector<RecipeName> tried_recipes() {
  if (whole_matrix())
    return {RecipeName::mxfp8, RecipeName::nvfp4, RecipeName::fp8_block, RecipeName::mxfp8_2d, RecipeName::fp8_tensor};
  if (mpi().size() % 2 == 0) return {RecipeName::mxfp8, RecipeName::nvfp4};
  return {RecipeName::fp8_block, RecipeName::mxfp8_2d, RecipeName::fp8_tensor};
}

/// Delay in microseconds: the last rank is late at every collective, the others are not.
int one_is_late() { return mpi().rank() + 1 == mpi().size() ? 2000 : 0; }

struct Change {
  const char* name;
  void (*make)(RunConfig&);
};
const Change changes[] = {
    {"no overlap", [](RunConfig& c) { c.proof.gather_overlap = c.proof.reduce_overlap = false; }},
    {"discrete", [](RunConfig& c) { c.model.moe->weights = ExpertWeights::discrete; }},
    {"recomputed blocks", [](RunConfig& c) { c.recompute.mode = RecomputeMode::full; }},
    {"evaluations", [](RunConfig& c) { c.eval.every_steps = 1; }},
    {"small buckets", [](RunConfig& c) { c.reduce.bucket_mib = 0.001; }},
    {"recomputed experts",
     [](RunConfig& c) {
       c.recompute.mode = RecomputeMode::selective;
       c.recompute.modules = std::vector<RecomputeModule>{RecomputeModule::moe, RecomputeModule::norm};
     }},
    {"much room", [](RunConfig& c) { c.parallel.expert_room = 100.0; }},
};

TEST(Experts, WhenAndHowChangesNoBit) {
  const std::size_t at_once = whole_matrix() ? 1 : 3;
  for (std::int64_t p : tried_groups())
    for (Compute compute : {Compute::bf16, Compute::fp32}) {
      if (compute == Compute::fp32 && !whole_matrix()) continue;
      const RunConfig config = spread(mixture(compute), p);
      const Outcome plain = outcome_of(config);
      for (std::size_t i = 0; i < std::size(changes); i += at_once) {
        RunConfig other = config;
        std::string names;
        for (std::size_t j = i; j < std::min(i + at_once, std::size(changes)); ++j) {
          changes[j].make(other);
          names += std::string(names.empty() ? "" : ", ") + changes[j].name;
        }
        expect_same(plain, outcome_of(other, true, i == 0 ? 2000 : one_is_late()), names);
      }
    }
}

// Every recipe: those that draw their rounding, too, from numbers that travel with the rows.
TEST(Experts, RowsInPeersMemoryHaveTheBitsOfAnExchange) {
  if (ways().size() == 1) GTEST_SKIP() << "ranks that share a GPU do not reach each other's memory";
  for (std::int64_t p : tried_groups()) {
    std::vector<RunConfig> configs{spread(mixture(Compute::bf16), p)};
    for (RecipeName recipe : tried_recipes()) configs.push_back(spread(coded(recipe), p));
    configs.back().model.moe->shared_ffn = 32;
    for (RunConfig& config : configs) {
      SCOPED_TRACE(shown(p, name_of(config.precision.recipe)));
      config.eval.every_steps = 2;
      const Outcome exchanged = outcome_of(config, true, 0);
      config.proof.expert_rows = ExpertRows::peers;
      expect_same(exchanged, outcome_of(config, true, one_is_late()), "in peers' memory");
      config.recompute.mode = RecomputeMode::full;
      config.model.moe->weights = ExpertWeights::discrete;
      config.parallel.expert_room = static_cast<double>(p);
      expect_same(exchanged, outcome_of(config, true, 1000), "recomputed, discrete");
    }
  }
}

// A trace observes steps from inside, so that none of the runs above is replayed.
TEST(Experts, StepsInPeersMemoryAreOneGraph) {
  if (ways().size() == 1) GTEST_SKIP() << "ranks that share a GPU do not reach each other's memory";
  for (std::int64_t p : tried_groups()) {
    RunConfig config = spread(mixture(Compute::bf16), p);
    config.run.steps = 12;
    const auto end_of = [&](ExpertRows way, bool graph) {
      config.proof.expert_rows = way;
      config.proof.graph = graph;
      Trial run(config, 0);
      EXPECT_EQ(run.train().size(), 12u);
      const bool replayed = way == ExpertRows::peers && graph && run.mesh().on_streams();
      EXPECT_EQ(run.training().engine().replays() > 0, replayed);
      return state_of(run);
    };
    const auto exchanged = end_of(ExpertRows::exchange, true);
    EXPECT_EQ(end_of(ExpertRows::peers, false), exchanged);
    EXPECT_EQ(end_of(ExpertRows::peers, true), exchanged);
  }
}

// Overlap on equals overlap off bit for bit, whatever the recipe and the keys of stochastic rounding.
TEST(Experts, HeldAsCodesAreThoseQuantizedForEachProduct) {
  for (std::int64_t p : tried_groups())
    for (RecipeName recipe : tried_recipes()) {
      RunConfig config = coded(recipe);
      config.model.moe->experts = mpi().size() == 3 ? 6 : 8;
      config.parallel.expert = p;
      RunConfig off = config;
      off.precision.primary_weights = PrimaryWeights::bf16;
      off.model.moe->weights = ExpertWeights::discrete;
      off.recompute.mode = RecomputeMode::full;
      derive(config);
      derive(off);
      expect_same(outcome_of(config, false), outcome_of(off, false, 0), "bf16, discrete, recomputed");
    }
}

TEST(Experts, AreSteppedByMuonInTheirOwnGroups) {
  for (std::int64_t p : tried_groups()) {
    RunConfig config = spread(mixture(Compute::bf16), p);
    config.optimizer.matrices = MatrixRule::muon;
    const Outcome single = outcome_of(config);
    config.model.moe->weights = ExpertWeights::discrete;
    config.proof.gather_overlap = false;
    expect_same(single, outcome_of(config, true, 0), "muon");
  }
}

/// A run whose routers give all experts the same logit, so that the lowest ones get every token.
std::unique_ptr<Trial> biased(const RunConfig& config) {
  auto run = std::make_unique<Trial>(config, 0);
  run->training().initialise([&](StateDict& state) {
    for (const StateTensor& tensor : state.tensors)
      for (const StateRange& range : tensor.ranges)
        if (tensor.role == Role::router) clear(run->device().compute(), range.values);
  });
  return run;
}

TEST(Experts, DropNoTokenWhereAllGoToOneRank) {
  RunConfig config = mixture(Compute::fp32);
  config.run.steps = 2;
  std::vector<MetricsRow> whole;
  test::all_steps(biased(spread(config, 1))->training(), into(whole));
  for (std::int64_t p : groups()) {
    const RunConfig parts = spread(config, p);
    std::vector<MetricsRow> rows;
    test::all_steps(biased(parts)->training(), into(rows));
    ASSERT_EQ(rows.size(), whole.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_NEAR(rows[i].loss, whole[i].loss, tolerances::fp32_order * whole[i].loss);
      EXPECT_NEAR(rows[i].grad_norm, whole[i].grad_norm, tolerances::fp32_order * whole[i].grad_norm);
    }
    EXPECT_EQ(rows.front().expert_rows, static_cast<double>(p)) << "the first rank holds both";
  }
}

void expect_no_room(ExpertRows way) {
  for (std::int64_t p : groups()) {
    RunConfig config = spread(mixture(Compute::bf16), p);
    config.parallel.expert_room = 1.0;
    config.proof.expert_rows = way;
    const auto run = biased(config);
    std::vector<MetricsRow> rows;
    const auto expect_refused = [&](const auto& work) {
      try {
        work();
        FAIL() << "there was room";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Exit::numerical);
        EXPECT_NE(std::string(error.what()).find("set " + std::to_string(p) + ".00 or more"), std::string::npos)
            << error.what();
      }
    };
    expect_refused([&] { run->training().evaluate(); });
    expect_refused([&] { run->training().engine().next_logits({1, 2}); });
    expect_refused([&] { test::all_steps(run->training(), into(rows)); });
    EXPECT_TRUE(rows.empty());
    run->mesh().log()->compare(run->control());
  }
}

TEST(Experts, WithoutRoomEndTheRunOnAllRanks) {
  for (const ExpertRows way : ways()) expect_no_room(way);
}

// Fewer windows than ranks: some ranks compute only padding, and still take part in every exchange.
TEST(Experts, EvaluateAndGenerateOnAllRanks) {
  for (std::int64_t p : groups()) {
    SCOPED_TRACE(shown(p));
    RunConfig config = spread(mixture(Compute::bf16), p);
    config.run.steps = 1;
    config.proof.expert_rows = ways().back();
    Trial run(config, 1000, 2);
    run.train();
    const double loss = run.training().evaluate()->front();
    EXPECT_TRUE(std::isfinite(loss) && loss > 0);
    std::string text;
    generate([&](const std::vector<std::int32_t>& ids) { return run.training().next_logits(ids); }, {.seed = 3},
             {'t', 'i', 'l', 'e'}, 5, [&](std::int32_t token) {
               text += static_cast<char>(token);
               return true;
             });
    for (const std::string& other : run.control().gather(text)) EXPECT_EQ(other, text);
  }
}

void expect_planned(std::int64_t p, ExpertRows way) {
  RunConfig config = spread(mixture(Compute::bf16), p);
  config.proof.expert_rows = way;
  const RunPlan plan = resolve(config, mpi().size(), mpi().rank());
  const std::int64_t micro_batches = 12 / mpi().size(), passes = config.model.layers * micro_batches;
  const std::int64_t slots = 24 * 2, own = slots / p + (plan.ranks.experts.rank < slots % p ? 1 : 0);
  int labels = 0;
  for (const CollectiveCost& cost : plan.collectives) {
    if (cost.collective != Collective::exchange_rows) continue;
    EXPECT_EQ(cost.count, passes) << cost.label;
    EXPECT_EQ(cost.bytes, (slots - own) * config.model.hidden * 2) << cost.label;
    ++labels;
  }
  EXPECT_EQ(labels, 4);
  EXPECT_EQ(plan.ranks.experts.size, p);
  EXPECT_EQ(plan.layout.hash(), resolve(config, mpi().size(), 0).layout.hash());
}

// A plan assumes even routing for exchanges; the trace of a step lists what it really exchanged.
TEST(Experts, ExchangesArePlannedAndListed) {
  for (std::int64_t p : groups())
    for (const ExpertRows way : {ExpertRows::exchange, ExpertRows::peers}) expect_planned(p, way);
}

}  // namespace
}  // namespace tessera
