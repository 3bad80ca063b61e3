#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "app/training/loop/training.hpp"
#include "tests/support/all_steps.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/mpi.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/tiny_gpt.hpp"
#include "tests/support/tolerances.hpp"

// The goldens' ten training steps in the real loop: sharded masters, buckets, overlapped collectives, AdamW, clipping.
// tests/unit/core/gpt_parity_test.cpp compares the model alone.
namespace tessera::test {
namespace {
using nlohmann::json;

using test::mpi;

template <class E>
E choice(const json& name) {
  return choice_named<E>(name.get<std::string>()).value();
}

ModelConfig model_of(const json& golden) {
  ModelConfig model;
  model.layers = golden.at("layers");
  model.hidden = golden.at("hidden");
  model.heads = golden.at("heads");
  model.kv_heads = golden.at("kv_heads").get<std::int64_t>();
  model.head_dim = golden.at("head_dim").get<std::int64_t>();
  model.ffn = golden.at("ffn").get<std::int64_t>();
  model.seq_len = golden.at("seq_len");
  model.vocab = golden.at("vocabulary").get<std::int64_t>();
  model.norm = choice<Norm>(golden.at("norm"));
  model.position = choice<Position>(golden.at("position"));
  model.activation = choice<Activation>(golden.at("activation"));
  model.rope_base = golden.at("rope_base");
  model.bias = golden.at("bias").get<bool>();
  model.tied_head = golden.at("tied_head");
  if (const json& moe = golden.at("moe"); !moe.is_null()) {
    model.moe = MoeConfig{};
    model.moe->experts = moe.at("experts");
    model.moe->top_k = moe.at("top_k");
    model.moe->renormalize = moe.at("renormalize").get<bool>();
    model.moe->balance_coef = moe.at("balance_coef").get<double>();
    model.moe->z_coef = moe.at("z_coef").get<double>();
    model.moe->ffn = moe.value("ffn", model.ffn.get());
    model.moe->first_dense = moe.value("first_dense", 0);
    model.moe->every = moe.value("every", 1);
    model.moe->shared_ffn = moe.value("shared_ffn", 0);
    model.moe->shared_gate = moe.value("shared_gate", false);
    model.moe->scores = choice<Scores>(moe.value("scores", "softmax"));
    model.moe->scale = moe.value("scale", 1.0);
    model.moe->groups = moe.value("groups", 1);
    model.moe->top_groups = moe.value("top_groups", std::int64_t{1});
    model.moe->balance_over = choice<BalanceOver>(moe.value("balance_over", "sequence"));
    model.moe->bias_rate = moe.value("bias_rate", 0.0);
    model.moe->bias = model.moe->bias_rate > 0;
    model.moe->capacity = moe.value("capacity", 0.0);
  }
  return model;
}

RunConfig config_of(const Golden& golden, Compute compute) {
  const json& training = golden.index.at("training");
  RunConfig config;
  config.run.steps = training.at("steps");
  config.model = model_of(golden.index.at("model"));
  config.data.kind = DataKind::tokens;
  config.data.files = {"in memory"};
  config.data.eval_fraction = 0.0;
  config.data.shuffle = false;
  config.batch = {.global = training.at("sequences"), .micro = 1};
  config.precision.compute = compute;
  config.reduce.bucket_mib = 0.004;  // about a thousand elements, so that there are many groups
  config.optimizer.lr = training.at("lr");
  config.optimizer.min_lr = training.at("min_lr");
  config.optimizer.warmup_steps = training.at("warmup_steps");
  config.optimizer.beta1 = training.at("beta1");
  config.optimizer.beta2 = training.at("beta2");
  config.optimizer.eps = training.at("eps");
  config.optimizer.weight_decay = training.at("weight_decay");
  config.optimizer.clip = training.at("clip");
  derive(config);
  return config;
}

/// The text of all steps; windows are read from it in order.
std::vector<std::uint8_t> text_of(const Golden& golden, const RunConfig& config) {
  std::vector<std::uint8_t> text;
  for (std::int64_t i = 0; i <= config.run.steps * config.batch.global * config.model.seq_len; ++i) {
    const double u = golden_uniform("tokens:" + golden.seed(), i);
    text.push_back(static_cast<std::uint8_t>(std::floor(static_cast<double>(config.model.vocab) * (u + 1) / 2)));
  }
  return text;
}

/// Sets masters by the goldens' formula.
void fill_weights(StateDict& state, const Golden& golden, Device& device) {
  for (const StateTensor& tensor : state.tensors) {
    const auto& all = golden.index.at("tensors");
    const auto found = std::find_if(all.begin(), all.end(), [&](const json& t) { return t.at("name") == tensor.name; });
    ASSERT_NE(found, all.end()) << tensor.name;
    for (const StateRange& range : tensor.ranges) {
      std::vector<float> values;
      for (std::int64_t i = range.first; i < range.first + range.values.elements(); ++i)
        values.push_back(static_cast<float>(found->at("start").get<double>() +
                                            found->at("scale").get<double>() *
                                                golden_uniform(tensor.name + ":" + golden.seed(), i)));
      device.upload(device.compute(), range.values, values.data());
    }
  }
}

std::vector<MetricsRow> train(const Golden& golden, const RunConfig& config) {
  const RunPlan plan = resolve(config, mpi().size(), mpi().rank());
  EXPECT_GE(plan.layout.groups().size(), 6);
  Device device;
  const std::vector<std::uint8_t> text = text_of(golden, config);
  TokenStream tokens;
  tokens.append(std::span<const std::uint8_t>(text));
  Problems problems;
  const Windows windows = Windows::split(tokens.count(), config.model.seq_len, config.data.eval_fraction, problems);
  problems.raise();
  std::vector<Record> records;
  const auto control = mpi().control(std::chrono::seconds(300));
  Mesh mesh = mpi().mesh(device, plan.ranks, std::chrono::seconds(300));
  Training training(device, plan, Batches(config, tokens, windows, plan.ranks.world), mesh, *control, records);
  training.initialise([&](StateDict& state) { fill_weights(state, golden, device); });
  std::vector<MetricsRow> rows;
  test::all_steps(training, [&](const MetricsRow& row) {
    rows.push_back(row);
    return Problems();
  });
  return rows;
}

struct Errors {
  double losses = 0, norms = 0;
};
Errors errors_of(const Golden& golden, const RunConfig& config) {
  const std::vector<MetricsRow> rows = train(golden, config);
  const auto relative = [&](const char* what, float MetricsRow::*ours) {
    const std::vector<double> expected = golden.index.at(what);
    EXPECT_EQ(rows.size(), expected.size());
    double worst = rows.empty() || rows.size() != expected.size() ? NAN : 0;
    for (std::size_t i = 0; i < rows.size() && i < expected.size(); ++i) {
      test::keep_worst(worst, std::abs(static_cast<double>(rows[i].*ours) / expected[i] - 1));
    }
    return worst;
  };
  return {relative("losses", &MetricsRow::loss), relative("norms", &MetricsRow::grad_norm)};
}

class GoldenTraining : public ::testing::TestWithParam<const char*> {
 protected:
  /// Whether the ranks can share the goldens' four sequences evenly; else expects a refusal.
  static bool shared(const RunConfig& config) {
    if (config.batch.global % mpi().size() == 0) return true;
    EXPECT_THROW(resolve(config, mpi().size(), mpi().rank()), Error);
    return false;
  }
  static void say(const char* type, const Errors& errors) {
    if (mpi().rank() == 0)
      std::printf("%s %s: ten losses %.1e, norms %.1e\n", GetParam(), type, errors.losses, errors.norms);
  }
};

TEST_P(GoldenTraining, Fp32) {
  const Golden golden = read_golden(GetParam());
  RunConfig config = config_of(golden, Compute::fp32);
  if (!shared(config)) return;
  for (Overlap overlap : {Overlap::on, Overlap::off}) {
    SCOPED_TRACE(shown(overlap));
    config.proof.gather_overlap = config.proof.reduce_overlap = overlap == Overlap::on;
    const Errors errors = errors_of(golden, config);
    say("fp32", errors);
    EXPECT_LE(errors.losses, tolerances::fp32_loss);
    EXPECT_LE(errors.norms, tolerances::fp32_gradient);
  }
}

// The same mixtures with expert parallelism.
TEST_P(GoldenTraining, Fp32WithExpertsSpread) {
  const Golden golden = read_golden(GetParam());
  const RunConfig whole = config_of(golden, Compute::fp32);
  if (!whole.model.moe || !shared(whole)) return;
  for (int expert = 2; expert <= mpi().size(); ++expert) {
    if (mpi().size() % expert != 0 || whole.model.moe->experts % expert != 0) continue;
    RunConfig config = whole;
    config.parallel = {};
    config.parallel.expert = expert;
    derive(config);
    const Errors errors = errors_of(golden, config);
    say("fp32, experts spread", errors);
    EXPECT_LE(errors.losses, tolerances::fp32_loss);
    EXPECT_LE(errors.norms, tolerances::fp32_gradient);
  }
}

TEST_P(GoldenTraining, Bf16) {
  const Golden golden = read_golden(GetParam());
  const RunConfig config = config_of(golden, Compute::bf16);
  if (!shared(config)) return;
  const Errors errors = errors_of(golden, config);
  say("bf16", errors);
  EXPECT_LE(errors.losses, tolerances::bf16_training);
}

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenTraining, ::testing::ValuesIn(golden_models));

}  // namespace
}  // namespace tessera::test
