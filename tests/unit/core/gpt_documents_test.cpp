// Documents apart and targets masked, against PyTorch, which computes every document by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/loss/loss.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/golden_shape.hpp"
#include "tests/support/norm.hpp"
#include "tests/support/tiny_gpt.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {
namespace {

/// Begins documents and drops targets as document_goldens.py does; returns the number of targets.
std::int64_t set_documents(TinyGpt& gpt) {
  const auto ids = on_host<std::int32_t>(gpt.device, gpt.batch.ids);
  auto targets = on_host<std::int32_t>(gpt.device, gpt.batch.targets);
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool begins = i % static_cast<std::size_t>(gpt.model.shape().seq_len) == 0 || ids[i] % 9 == 0;
    positions.push_back(begins ? 0 : positions.back() + 1);
  }
  for (std::int32_t& target : targets)
    if (target % 4 == 0) target = no_target;
  const auto counted = std::ssize(targets) - std::ranges::count(targets, no_target);
  gpt.batch.positions = on_device(gpt.device, positions);
  gpt.batch.targets = on_device(gpt.device, targets);
  gpt.batch.target_scale = on_device(gpt.device, std::vector{1.0 / static_cast<double>(counted)});
  return counted;
}

class GptDocuments : public ::testing::TestWithParam<const char*> {};

TEST_P(GptDocuments, EqualThoseComputedAlone) {
  const Golden golden = read_golden(GetParam());
  for (const DType compute : {DType::f32, DType::bf16}) {
    TinyGpt gpt(dense_shape(golden.index.at("model"), compute), golden.index.at("training").at("sequences"));
    gpt.initialise(golden.seed());
    gpt.set_batch(golden.seed(), 0);
    const std::int64_t targets = set_documents(gpt);
    EXPECT_EQ(targets, golden.index.at("targets").get<std::int64_t>());
    const double loss = gpt.gradient().loss / static_cast<double>(targets), wanted = golden.index.at("loss");
    const bool single = compute == DType::f32;
    EXPECT_LE(std::abs(loss - wanted) / wanted, single ? tolerances::fp32_loss : tolerances::bf16_loss);
    EXPECT_EQ(gpt.evaluate().loss / static_cast<double>(targets), loss);
    const double floor = tolerances::gradient_floor * golden.index.at("grad_norm").get<double>();
    const auto gradients = gpt.canonical_gradients();
    ASSERT_EQ(gradients.size(), golden.index.at("tensors").size());
    for (const auto& tensor : golden.index.at("tensors")) {
      const std::vector<double> expected = golden.part(tensor);
      std::vector<double> error = gradients.at(tensor.at("name"));
      ASSERT_EQ(error.size(), expected.size());
      double square = 0, of_all = 0;
      for (std::size_t i = 0; i < error.size(); ++i) {
        square += (error[i] - expected[i]) * (error[i] - expected[i]);
        of_all += expected[i] * expected[i];
      }
      EXPECT_LE(std::sqrt(square) / std::max(std::sqrt(of_all), floor),
                single ? tolerances::fp32_gradient : tolerances::bf16_gradient)
          << tensor.at("name");
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Goldens, GptDocuments, ::testing::Values("documents_gpt2", "documents_llama"));

TEST(GptDocuments, ABatchWithoutATargetHasNoGradient) {
  const Golden golden = read_golden("documents_llama");
  TinyGpt gpt(dense_shape(golden.index.at("model"), DType::f32), 4);
  gpt.initialise(golden.seed());
  gpt.set_batch(golden.seed(), 0);
  gpt.batch.targets = on_device(gpt.device, std::vector<std::int32_t>(static_cast<std::size_t>(gpt.rows), no_target));
  gpt.batch.target_scale = on_device(gpt.device, std::vector{0.0});
  EXPECT_EQ(gpt.gradient().loss, 0);
  for (const auto& [name, values] : gpt.canonical_gradients())
    EXPECT_TRUE(std::ranges::all_of(values, [](double g) { return g == 0; })) << name;
}

}  // namespace
}  // namespace tessera::test
