#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "core/optim/schedule.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/optim/adamw.hpp"
#include "kernels/optim/balance.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/golden_shape.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/tiny_gpt.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {
namespace {
using nlohmann::json;

/// Of a golden's model; those that lack a key have what its default means.
MoeShape moe_of(const json& moe, std::int64_t ffn) {
  MoeShape shape{moe.at("experts"),     moe.at("top_k"),        moe.at("renormalize"),
                 ExpertWeights::single, moe.at("balance_coef"), moe.at("z_coef")};
  shape.ffn = moe.value("ffn", ffn);
  shape.blocks = {moe.value("first_dense", 0), moe.value("every", 1)};
  shape.shared_ffn = moe.value("shared_ffn", 0);
  shape.shared_gate = moe.value("shared_gate", false);
  shape.rule.scores = choice_named<Scores>(moe.value("scores", "softmax")).value();
  shape.rule.scale = moe.value("scale", 1.0);
  shape.rule.groups = moe.value("groups", 1);
  shape.rule.top_groups = moe.value("top_groups", 1);
  shape.balance_over = choice_named<BalanceOver>(moe.value("balance_over", "sequence")).value();
  shape.bias = moe.value("bias_rate", 0.0) > 0;
  shape.capacity = moe.value("capacity", 0.0);
  return shape;
}

GptShape shape_of(const json& model, DType compute) {
  GptShape shape = dense_shape(model, compute);
  if (const json& moe = model.at("moe"); !moe.is_null())
    shape.moe = moe_of(moe, shape.ffn);
  return shape;
}

double norm_of(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}
double distance(std::vector<double> a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return NAN;
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm_of(a);
}

/// Relative errors of one model against its golden. NaN fails every comparison.
struct Errors {
  double loss = 0, auxiliary = 0, gradients = 0, logits = 0, training = 0;
};

/// AdamW on fp32 masters with the kernels themselves.
class Trainer {
 public:
  Trainer(TinyGpt& gpt, const json& training, float bias_rate)
      : gpt_(gpt), steps_(training.at("steps")), bias_rate_(bias_rate) {
    config_.lr = training.at("lr");
    config_.min_lr = training.at("min_lr");
    config_.warmup_steps = training.at("warmup_steps");
    config_.beta1 = training.at("beta1");
    config_.beta2 = training.at("beta2");
    config_.eps = training.at("eps");
    config_.weight_decay = training.at("weight_decay");
    config_.clip = training.at("clip");
    const AdamWClock start;
    gpt.device.upload(stream(), clock_, &start);
    std::vector<AdamWRange> runs;
    if (const auto& moe = gpt.model.shape().moe) slots_ = static_cast<double>(gpt.rows * moe->top_k);
    for (ParamId id : gpt.params.ids()) {
      const bool counted = is_counted(gpt.registry[id].role);
      const float decay = decays(gpt.registry[id].role) ? static_cast<float>(config_.weight_decay) : 0;
      for (const FlatParams::Piece& piece : gpt.params.pieces(id)) {
        const auto zeros = std::vector<float>(static_cast<std::size_t>(piece.value.elements()));
        const Tensor master = on_device(gpt.device, zeros);
        convert(stream(), master, piece.value);
        (counted ? counted_ : owned_).push_back({piece, master, gpt.registry[id].role});
        if (counted) continue;
        runs.push_back({master, on_device(gpt.device, zeros), on_device(gpt.device, zeros), piece.gradient, decay});
      }
    }
    table_ = AdamWTable(runs);
    table_.bind(bytes(static_cast<std::size_t>(table_.bytes())));
    gpt.device.upload(stream(), table_);
  }

  /// One step on the golden's next batch; returns the loss before it.
  double step(const std::string& seed) {
    gpt_.set_batch(seed, done_++);
    const double loss = gpt_.gradient().loss * gpt_.batch.loss_scale;
    const auto rate = static_cast<float>(learning_rate(config_, steps_, done_));
    const float no_limit = std::numeric_limits<float>::infinity();
    gpt_.device.upload(stream(), rate_, &rate);
    gpt_.device.upload(stream(), limit_, &no_limit);
    auto* clip = static_cast<ClipResult*>(clip_.data);
    auto* clock = static_cast<AdamWClock*>(clock_.data);
    clear(stream(), squares_);
    for (const Owned& o : owned_) add_squares(stream(), squares_, {&o.piece.gradient, 1});
    clip_from_squares(stream(), clip, squares_, static_cast<float>(config_.clip), limit_.as<float>());
    adamw_step(stream(), {config_.beta1, config_.beta2, config_.eps}, table_, clock, clip, rate_.as<float>());
    for (const Owned& o : counted_) {
      const std::int64_t experts = o.master.elements();
      const bool load = o.role == Role::router_load;
      const std::vector<float> of(static_cast<std::size_t>(experts),
                                  load ? BalanceKind::load : static_cast<float>(experts));
      balance_step(stream(), o.master, o.piece.gradient, on_device(gpt_.device, of), bias_rate_, slots_, clip);
      convert(stream(), o.piece.value, o.master);
    }
    for (const Owned& o : owned_) convert(stream(), o.piece.value, o.master);
    return loss;
  }

 private:
  struct Owned {
    FlatParams::Piece piece;
    Tensor master;
    Role role;
  };
  Stream& stream() { return gpt_.device.compute(); }
  Tensor bytes(std::size_t n) {
    return gpt_.device.allocate(Category::optimizer, DType::u8, {static_cast<std::int64_t>(n)});
  }

  TinyGpt& gpt_;
  std::int64_t steps_, done_ = 0;
  float bias_rate_;
  OptimizerConfig config_;
  std::vector<Owned> owned_, counted_;
  double slots_ = 0;
  AdamWTable table_;
  Tensor clock_ = bytes(sizeof(AdamWClock)), clip_ = bytes(sizeof(ClipResult));
  Tensor squares_ = gpt_.device.allocate(Category::optimizer, DType::i64, {ExactSum::words});
  Tensor rate_ = gpt_.device.allocate(Category::optimizer, DType::f32, {1});
  Tensor limit_ = gpt_.device.allocate(Category::optimizer, DType::f32, {1});
};

Errors errors_of(const std::string& name, DType compute, Accumulation accumulation = Accumulation::fused) {
  const Golden golden = read_golden(name);
  const json& index = golden.index;
  const std::string seed = golden.seed();
  GptShape shape = shape_of(index.at("model"), compute);
  shape.accumulation = accumulation;
  TinyGpt gpt(shape, index.at("training").at("sequences"));
  gpt.initialise(seed);
  gpt.set_batch(seed, 0);

  Errors errors;
  const StepSums sums = gpt.gradient();
  const double loss = index.at("loss");
  errors.loss = std::abs(sums.loss * gpt.batch.loss_scale - loss) / loss;
  if (shape.moe) {
    test::keep_worst(errors.auxiliary, std::abs(sums.balance / index.at("balance_sum").get<double>() - 1));
    test::keep_worst(errors.auxiliary, std::abs(sums.z / index.at("z_sum").get<double>() - 1));
  }
  const double floor = tolerances::gradient_floor * index.at("grad_norm").get<double>();
  const auto gradients = gpt.canonical_gradients();
  EXPECT_EQ(gradients.size(), index.at("tensors").size());
  for (const json& tensor : index.at("tensors")) {
    const std::vector<double> expected = golden.part(tensor);
    const double error = distance(gradients.at(tensor.at("name")), expected) / std::max(norm_of(expected), floor);
    test::keep_worst(errors.gradients, error);
  }
  std::vector<double> logits;
  for (std::int64_t t = 0; t < shape.seq_len; ++t)
    for (double x : gpt.next_logits(0, t)) logits.push_back(x);
  const std::vector<double> expected = golden.part(index.at("logits"));
  errors.logits = distance(logits, expected) / norm_of(expected);

  const json& moe = index.at("model").at("moe");
  Trainer trainer(gpt, index.at("training"), moe.is_object() ? moe.value("bias_rate", 0.0f) : 0.0f);
  for (double expected_loss : index.at("losses"))
    test::keep_worst(errors.training, std::abs(trainer.step(seed) - expected_loss) / expected_loss);
  std::printf("%s %s: loss %.1e, auxiliary %.1e, gradients %.1e, logits %.1e, ten losses %.1e\n", name.c_str(),
              name_of(compute), errors.loss, errors.auxiliary, errors.gradients, errors.logits, errors.training);
  return errors;
}

class Parity : public ::testing::TestWithParam<const char*> {};

TEST_P(Parity, Fp32) {
  for (Accumulation how : {Accumulation::fused, Accumulation::unfused}) {
    SCOPED_TRACE(shown(how));
    const Errors errors = errors_of(GetParam(), DType::f32, how);
    EXPECT_LE(errors.loss, tolerances::fp32_loss);
    EXPECT_LE(errors.auxiliary, tolerances::fp32_loss);
    EXPECT_LE(errors.gradients, tolerances::fp32_gradient);
    EXPECT_LE(errors.logits, tolerances::fp32_logits);
    EXPECT_LE(errors.training, tolerances::fp32_loss);
  }
}

TEST_P(Parity, Bf16) {
  const Errors errors = errors_of(GetParam(), DType::bf16);
  const bool experts = read_golden(GetParam()).index.at("model").at("moe").is_object();
  EXPECT_LE(errors.loss, tolerances::bf16_loss);
  EXPECT_LE(errors.auxiliary, tolerances::bf16_auxiliary);
  EXPECT_LE(errors.logits, tolerances::bf16_logits);
  EXPECT_LE(errors.gradients, experts ? tolerances::bf16_gradient_moe : tolerances::bf16_gradient);
  EXPECT_LE(errors.training, tolerances::bf16_training);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Parity, ::testing::ValuesIn(golden_models));

TEST(ParityGoldens, KnowEveryParameter) {
  for (const char* name : golden_models) {
    SCOPED_TRACE(shown(name));
    const Golden golden = read_golden(name);
    ParamRegistry registry;
    const Gpt model(registry, shape_of(golden.index.at("model"), DType::f32));
    ASSERT_EQ(registry.specs().size(), golden.index.at("tensors").size());
    for (std::size_t i = 0; i < registry.specs().size(); ++i) {
      const json& tensor = golden.index.at("tensors")[i];
      const Canonical& canonical = registry.specs()[i].canonical;
      EXPECT_EQ(canonical.name, tensor.at("name").get<std::string>());
      ASSERT_EQ(static_cast<std::size_t>(canonical.shape.rank()), tensor.at("shape").size());
      for (int d = 0; d < canonical.shape.rank(); ++d)
        EXPECT_EQ(canonical.shape[d], tensor.at("shape")[static_cast<std::size_t>(d)]);
    }
  }
}

}  // namespace
}  // namespace tessera::test
