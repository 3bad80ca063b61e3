#include "io/report/compare_page.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace tessera {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

ComparedRun run(const std::string& name, std::int64_t steps, float last, std::map<std::string, std::string> settings) {
  ComparedRun made{name, {}, std::move(settings)};
  for (std::int64_t step = 1; step <= steps; ++step) {
    MetricsRow row;
    row.step = step;
    row.loss = last + 0.1f * static_cast<float>(steps - step);
    if (step % 10 == 0) row.eval_loss = row.loss + (step == steps ? 0.5f : 0.25f);
    row.tokens = step * 100;
    row.step_ms = 500;
    row.tokens_per_s = step == 3 ? 9e9 : 200;
    row.skipped = step == 5;
    made.rows.push_back(row);
  }
  return made;
}

TEST(Comparison, SaysWhatARunCameTo) {
  ComparedRun one = run("a", 20, 2, {});
  one.rows.back().loss = nan;
  const Outcome outcome = outcome_of(one.rows);
  EXPECT_EQ(outcome.step, 20);
  EXPECT_EQ(outcome.tokens, 2000);
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_FLOAT_EQ(static_cast<float>(*outcome.loss), 2.5f) << "the last ten but the one that is no number";
  EXPECT_FLOAT_EQ(static_cast<float>(*outcome.eval_loss), 2.5f);
  EXPECT_FLOAT_EQ(static_cast<float>(*outcome.best), 2.5f);
  EXPECT_EQ(outcome.tokens_per_s, 200) << "a median";
  EXPECT_EQ(outcome.seconds, 10);
  EXPECT_FALSE(outcome.mfu || outcome.expert_load);
  EXPECT_FALSE(outcome_of({}).loss);
}

TEST(Comparison, ShowsTheSettingsThatDiffer) {
  const std::vector<ComparedRun> runs{
      run("runs/a", 20, 2, {{"run.name", "a"}, {"optimizer.lr", "0.001"}, {"run.steps", "20"}}),
      run("runs/<b>", 10, 3,
          {{"run.name", "b"}, {"optimizer.lr", "0.002"}, {"run.steps", "20"}, {"model.moe.experts", "4"},
           {"data.files", std::string(50, 'f')}}),
      {"runs/none yet", {}, {{"run.name", "c"}, {"optimizer.lr", "0.001"}, {"run.steps", "20"}}}};
  EXPECT_EQ(differing_settings(runs), (std::vector<std::string>{"data.files", "model.moe.experts", "optimizer.lr"}));
  const std::string text = comparison_text(runs);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  const std::string cut = "  " + std::string(29, 'f') + "...  ";
  for (const char* there : {"runs/a", "model.moe.experts  optimizer.lr  steps", "2.4500", cut.c_str(),
                            "-         0.001  ", "2.5000 at 20"})
    EXPECT_NE(text.find(there), std::string::npos) << there << "\n" << text;
  const std::string page = comparison_page(runs);
  for (const char* there : {"runs/&lt;b&gt;", "<th>optimizer.lr</th>", "Loss", "Throughput", "Evaluation loss",
                            ".s2 { stroke", "class=\"s1\"",
                            ">step</text>"})
    EXPECT_NE(page.find(there), std::string::npos) << there;
  for (const char* from_elsewhere : {"<script", "http", "src=", "href", "url(", "@import", "<b>"})
    EXPECT_EQ(page.find(from_elsewhere), std::string::npos) << from_elsewhere;
  EXPECT_EQ(differing_settings({runs.front()}), std::vector<std::string>{});
  EXPECT_LT(page.find("<th>optimizer.lr</th>"), page.find("<th>steps</th>")) << "what differs is seen first";
  EXPECT_EQ(comparison_page({runs.front()}).find("less the first run's"), std::string::npos) << "of one run";
}

/// The points of series `name` in the plot with this title: x and y by turns.
std::vector<double> points(const std::string& page, const std::string& title, const std::string& name) {
  std::vector<double> found;
  const std::size_t plot = page.find("aria-label=\"" + title + "\"");
  if (plot == std::string::npos) return found;
  const std::string svg = page.substr(plot, page.find("</svg>", plot) - plot);
  const std::string head = "<path class=\"" + name + "\" d=\"";
  const std::size_t begin = svg.rfind(head) + head.size();
  std::string path = svg.substr(begin, svg.find('"', begin) - begin);
  for (char& c : path)
    if (c == 'M' || c == 'L') c = ' ';
  for (std::size_t at = 0; (at = path.find("h0", at)) != std::string::npos;) path.replace(at, 2, "  ");
  std::istringstream numbers(path);
  for (double number; numbers >> number;) found.push_back(number);
  return found;
}

TEST(Comparison, ShowsDifferencesOfRunsThatAgree) {
  std::vector<ComparedRun> runs{run("a", 100, 2, {}), run("b", 100, 2, {}), run("c", 100, 2, {})};
  for (MetricsRow& row : runs[1].rows) row.loss += 0.001f;
  const std::string page = comparison_page(runs);
  const auto curve = [&](const char* name) { return points(page, "Loss less the first run's", name); };
  const auto first = curve("s0"), second = curve("s1"), third = curve("s2");
  ASSERT_EQ(first.size(), 200u);
  EXPECT_EQ(first, third);
  EXPECT_GT(first[1] - second[1], 150) << "a thousandth fills the plot";
  EXPECT_EQ(points(page, "Loss", "s0").front(), 60) << "step 1";
  EXPECT_GT(points(page, "Evaluation loss", "s0").front(), 80) << "its first step is 10, on the same axis";
}

TEST(Comparison, StatisticsOfQuantizersAreATable) {
  const auto with = [](const char* name, double error) {
    ComparedRun made = run(name, 4, 1, {});
    made.quantization = {{4, "up", "weight", "rows", "nvfp4", error, 0.25, 0, 0, {}},
                         {4, "down", "weight", "rows", "nvfp4", 3 * error, 0, 0, 0, {}}};
    return made;
  };
  const std::vector<ComparedRun> runs{with("one", 0.125), with("other", 0.5)};
  const std::string page = comparison_page(runs), text = comparison_text(runs);
  for (const char* part : {"in step 4", "<th>one</th><td>weight</td><td>0.25</td><td>0.375</td><td>down</td>",
                           "<td>1</td><td>1.5</td><td>down</td>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("<td>gradient</td>"), std::string::npos) << "a role that quantizes nothing";
  std::istringstream lines(text.substr(text.find("quantizers")));
  std::string line;
  std::size_t width = 0;
  std::getline(lines, line);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(std::getline(lines, line)) << i;
    if (i == 0) width = line.size();
    EXPECT_EQ(line.size(), width) << line;
  }
}

TEST(Comparison, APageSaysWhoseItIs) {
  const auto page = [](const std::vector<std::string>& names) {
    std::vector<ComparedRun> runs;
    for (const std::string& name : names) runs.push_back(run(name, 3, 2, {}));
    return runs_on(comparison_page(runs));
  };
  EXPECT_EQ(page({"runs/b", "runs/a"}), "runs/a, runs/b");
  EXPECT_EQ(page({"runs/a/", "./runs/b", "x/../runs/a"}), page({"runs/a", "runs/b"}));
  EXPECT_NE(page({"runs/a"}), page({"runs/a", "runs/b"}));
  EXPECT_NE(page({"runs/\"><b>"}), page({"runs/\">"})) << "names with characters of HTML";
  EXPECT_EQ(runs_on("<!doctype html>\n"), "");
}

}  // namespace
}  // namespace tessera
