#include "app/training/tell/late_report.hpp"

#include <gtest/gtest.h>

#include "app/training/loop/batches.hpp"
#include "core/plan/plan.hpp"
#include "tests/support/self_control.hpp"
#include "tests/support/small_runs.hpp"

namespace tessera {
namespace {

/// Steps of one rank, whose rows are read late or at once.
class Steps {
 public:
  explicit Steps(Reading reading) : report_(device_, config_, engine_, control_, nullptr, reading) {
    engine_.initialise();
    report_.send_to([this](const MetricsRow& row) {
      rows.push_back(row);
      return Problems();
    });
  }
  ~Steps() { engine_.sync().unshard_all(engine_.stream()); }

  LateReport& begun(std::int64_t step) {
    const std::int64_t global = config_.batch.global;
    report_.begun({step, step * global}, engine_.step(batches_.training(step - 1, (step - 1) * global), {0.01f}));
    return report_;
  }

  std::vector<MetricsRow> rows;  ///< rows that the sink got

 private:
  static TokenStream tokens_of(const std::vector<std::uint8_t>& text) {
    TokenStream tokens;
    tokens.append(std::span(text));
    return tokens;
  }
  static std::vector<std::uint8_t> text() {
    std::vector<std::uint8_t> bytes;
    for (int i = 0; i < 2000; ++i) bytes.push_back(static_cast<std::uint8_t>(i * i % 251));
    return bytes;
  }
  static Windows windows_of(const TokenStream& tokens, const RunConfig& config) {
    Problems problems;
    const Windows windows = Windows::split(tokens.count(), config.model.seq_len, 0, problems);
    problems.raise();
    return windows;
  }

  RunConfig config_ = test::dense(Compute::fp32);
  RunPlan plan_ = resolve(config_, 1, 0);
  Device device_;
  Mesh mesh_ = self_mesh();
  test::SelfControl control_;
  std::vector<std::uint8_t> text_ = text();
  TokenStream tokens_ = tokens_of(text_);
  Batches batches_{config_, tokens_, windows_of(tokens_, config_), plan_.ranks.world};
  Engine engine_{device_, plan_, mesh_};
  LateReport report_;
};

class LateReportTest : public testing::TestWithParam<Reading> {};

TEST_P(LateReportTest, HandsOnEachRowOnceAndOneStepLater) {
  Steps steps(GetParam());
  for (std::int64_t step = 1; step <= 4; ++step) {
    LateReport& report = steps.begun(step);
    EXPECT_EQ(std::ssize(steps.rows), step - 1);
    if (step == 4) report.finish();
  }
  ASSERT_EQ(steps.rows.size(), 4u);

  // Results of steps, each read before anything else has begun: the expected values.
  Steps alone(Reading::at_once);
  for (std::int64_t step = 1; step <= 4; ++step) {
    alone.begun(step).finish();
    const MetricsRow &late = steps.rows[static_cast<std::size_t>(step - 1)], &now = alone.rows.back();
    EXPECT_EQ(late.step, step);
    EXPECT_EQ(late.lr, now.lr);
    EXPECT_EQ(late.loss, now.loss);
    EXPECT_EQ(late.grad_norm, now.grad_norm);
  }
  for (std::size_t i = 1; i < 4; ++i) EXPECT_NE(steps.rows[i].loss, steps.rows[i - 1].loss);
}

TEST_P(LateReportTest, AnEvaluationBelongsToTheStepBeforeIt) {
  Steps steps(GetParam());
  for (std::int64_t step = 1; step <= 3; ++step) {
    LateReport& report = steps.begun(step);
    if (step == 2) report.evaluated([] { return std::vector{7.5}; });
    if (step == 3) report.finish();
  }
  ASSERT_EQ(steps.rows.size(), 3u);
  EXPECT_FALSE(steps.rows[0].eval_loss);
  EXPECT_EQ(steps.rows[1].eval_loss, 7.5f);
  EXPECT_FALSE(steps.rows[2].eval_loss);
}

INSTANTIATE_TEST_SUITE_P(Readings, LateReportTest, testing::Values(Reading::late, Reading::at_once),
                         [](const auto& reading) { return reading.param == Reading::late ? "late" : "at_once"; });

}  // namespace
}  // namespace tessera
