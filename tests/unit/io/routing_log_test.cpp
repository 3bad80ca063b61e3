#include "io/metrics/routing_log.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/files/text_file.hpp"
#include "io/report/heat_map.hpp"
#include "io/report/routing_plots.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera::test {
namespace {

RoutingRow row(std::int64_t step, std::int64_t layer, std::vector<std::int64_t> load) {
  RoutingRow made;
  made.step = step;
  made.layer = layer;
  made.load = std::move(load);
  made.scores_entropy = 0.25;
  made.choices = 0xFEDCBA9876543210u;
  return made;
}

TEST(RoutingRows, SayHowUnevenLoadsAre) {
  const RoutingRow uneven = row(1, 0, {6, 2, 0, 0});
  EXPECT_EQ(uneven.max_vio(), 2);
  EXPECT_EQ(uneven.least(), 0);
  EXPECT_EQ(uneven.unused(), 2);
  EXPECT_DOUBLE_EQ(uneven.entropy(), (0.75 * std::log(4 / 3.0) + 0.25 * std::log(4.0)) / std::log(4.0));
  const RoutingRow even = row(1, 0, {2, 2, 2});
  EXPECT_DOUBLE_EQ(1 + even.max_vio(), 1);
  EXPECT_DOUBLE_EQ(even.entropy(), 1);
  EXPECT_EQ(row(1, 0, {5}).entropy(), 0);
  RoutingRow full = uneven;
  full.bias = {0.5f, -0.001f, 0, 0};
  full.moved = 0.125;
  EXPECT_EQ(to_json(full),
            R"({"step":1,"layer":0,"load":[6,2,0,0],"max_vio":2,"least":0,"entropy":)" +
                nlohmann::json(full.entropy()).dump() +
                R"(,"unused":2,"moved":0.125,"scores_entropy":0.25,"bias":[0.5,-0.001,0,0],)"
                R"("choices":"fedcba9876543210","skipped":false})");
  RoutingRow replayed = uneven;
  replayed.dropped = 0.25;
  replayed.differ = 0;
  EXPECT_NE(to_json(replayed).find(R"("scores_entropy":0.25,"dropped":0.25,"differ":0,"choices")"), std::string::npos);
}

TEST(RoutingLog, KeepsWhatLeadsToItsStepAndKnowsTheRowsBefore) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / routing_file;
  EXPECT_TRUE(read_routing(path).empty());
  {
    RoutingLog log(path, 0);
    EXPECT_TRUE(log.append({row(2, 0, {4, 0}), row(2, 1, {2, 2})}).empty());
    EXPECT_TRUE(log.append({}).empty());
    EXPECT_TRUE(log.append({row(4, 0, {3, 1}), row(4, 1, {0, 4})}).empty());
  }
  const std::string whole = read_text_file(path);
  const std::vector<RoutingRow> rows = read_routing(path);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_FALSE(rows[0].moved);
  EXPECT_EQ(rows[2].moved, 0.25);
  EXPECT_EQ(rows[3].moved, 0.5);
  EXPECT_EQ(rows[3].load, (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(rows[3].choices, 0xFEDCBA9876543210u);
  // Restarted after any step, with half a line behind: the same rows again make the same file.
  for (std::int64_t step = 0; step <= 4; ++step) {
    replace_text_file(path, whole + "{\"step\":6,\"lay");
    RoutingLog log(path, step);
    Problems problems;
    if (step < 2) problems.add(log.append({row(2, 0, {4, 0}), row(2, 1, {2, 2})}));
    if (step < 4) problems.add(log.append({row(4, 0, {3, 1}), row(4, 1, {0, 4})}));
    EXPECT_TRUE(problems.empty());
    EXPECT_EQ(read_text_file(path), whole) << step;
  }
}

TEST(HeatMaps, HaveAPathForEachShadeThatIsThere) {
  HeatMap map{"t", "u", "expert", "0", "3", {"1"}, {{1, 1.1, 9, 0.05}}};
  const std::string svg = heat_map(map);
  const auto paths = [&](const char* shade) { return svg.find(std::string("class=\"") + shade + "\"") != svg.npos; };
  EXPECT_TRUE(paths("h8") && paths("h0"));
  for (const char* shade : {"h1", "h2", "h3", "h4", "h5", "h6", "h7"}) EXPECT_FALSE(paths(shade)) << shade;
  map.values.clear();
  EXPECT_EQ(heat_map(map), "");
}

TEST(RoutingPlots, OfManyLayersAndStepsStaySmall) {
  std::vector<RoutingRow> rows;
  for (std::int64_t step = 1; step <= 500; ++step)
    for (std::int64_t layer = 0; layer < 60; ++layer) {
      std::vector<std::int64_t> load(256);
      for (std::size_t e = 0; e < load.size(); ++e) load[e] = static_cast<std::int64_t>((e * 7919 + 13) % 97);
      rows.push_back(row(step, layer, load));
      rows.back().bias.assign(256, 0.01f * static_cast<float>(layer));
    }
  const std::string page = routing_plots(rows, {}, {}, std::nullopt);
  EXPECT_LT(page.size(), 1000000u);
  for (const char* title : {"Load by expert", "Busiest expert by layer", "Unevenness", "Selection bias"})
    EXPECT_NE(page.find(title), page.npos) << title;
  EXPECT_EQ(routing_plots({}, {}, {}, std::nullopt), "");
}

}  // namespace
}  // namespace tessera::test
