#include "io/report/trace_difference.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/files/text_file.hpp"
#include "kernels/base/error.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> rows() {
  std::vector<Json> all;
  for (int step = 3; step <= 6; ++step)
    all.push_back({{"step", step},
                   {"chain", "c" + std::to_string(step)},
                   {"choices", {{"layers.0.moe", "7"}, {"layers.2.moe", "8"}}},
                   {"loss", 1.5 / step},
                   {"norm", 0.25 * step},
                   {"logits", "l"},
                   {"gradients", {{"b.weight", "1"}, {"a.weight", "2"}}},
                   {"masters", {{"b.weight", "3"}, {"a.weight", "4"}}},
                   {"weights", {{"b.weight", {{"rowwise", "5"}}}}},
                   {"collectives", Json::array()}});
  return all;
}

class TraceDifferences : public testing::Test {
 protected:
  std::string written(const char* name, const std::vector<Json>& rows) {
    std::string text;
    for (const Json& row : rows) text += row.dump() + "\n";
    const std::string path = folder_.path() / name;
    replace_text_file(path, text);
    return path;
  }
  TraceComparison with(const std::vector<Json>& other) {
    return compare_traces(written("a", rows()), written("b", other));
  }

  test::TemporaryFolder folder_;
};

TEST_F(TraceDifferences, WhatMayDifferDoesNotCount) {
  std::vector<Json> other = rows();
  other.erase(other.begin());
  for (Json& row : other) row["weights"] = row["collectives"] = nullptr;
  const TraceComparison found = with(other);
  EXPECT_FALSE(found.difference);
  EXPECT_EQ(found.first, 4);
  EXPECT_EQ(found.last, 6);
}

// Each stage by itself, in a step of its own, and all later ones too: the first is told.
TEST_F(TraceDifferences, TheFirstStepStageAndTensorAreTold) {
  using Change = std::function<void(Json&)>;
  const std::vector<std::pair<std::string, Change>> stages{
      {"chain", [](Json& row) { row["chain"] = "other"; }},
      {"choices", [](Json& row) { row["choices"]["layers.2.moe"] = "other"; }},
      {"loss", [](Json& row) { row["loss"] = 1.5000001; }},
      {"logits", [](Json& row) { row["logits"] = "other"; }},
      {"gradient", [](Json& row) { row["gradients"]["a.weight"] = "other"; }},
      {"norm", [](Json& row) { row["norm"] = 7; }},
      {"master", [](Json& row) { row["masters"].erase("a.weight"); }}};
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (std::size_t step = 0; step < 4; ++step) {
      std::vector<Json> other = rows();
      for (std::size_t s = stage; s < stages.size(); ++s) stages[s].second(other[step]);
      for (std::size_t later = step + 1; later < other.size(); ++later) stages.front().second(other[later]);
      const TraceComparison found = with(other);
      ASSERT_TRUE(found.difference) << stages[stage].first;
      EXPECT_EQ(found.difference->step, static_cast<std::int64_t>(step) + 3);
      EXPECT_EQ(found.difference->stage, stages[stage].first);
      const bool of_tensor = stages[stage].first == "gradient" || stages[stage].first == "master";
      const bool of_layer = stages[stage].first == "choices";
      EXPECT_EQ(found.difference->tensor, of_tensor ? "a.weight" : of_layer ? "layers.2.moe" : "");
    }
}

TEST_F(TraceDifferences, FilesThatAreNoTracesAreRefused) {
  const std::string a = written("a", rows());
  std::vector<Json> later = rows();
  for (Json& row : later) row["step"] = row["step"].get<int>() + 100;
  EXPECT_THROW(compare_traces(a, written("b", later)), Error) << "no step in common";
  EXPECT_THROW(compare_traces(a, written("b", {})), Error);
  EXPECT_THROW(compare_traces(written("b", {Json{{"step", 1}, {"loss", 2}}}), a), Error);
  EXPECT_THROW(compare_traces(a, folder_.path() / "missing"), Error);
  // A row that is being written does not count.
  replace_text_file(folder_.path() / "b", rows().front().dump() + "\n{\"step\": 4, \"lo");
  EXPECT_EQ(compare_traces(a, folder_.path() / "b").last, 3);
}

}  // namespace
}  // namespace tessera
