#include "io/report/report_page.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

struct Point {
  double x, y;
};
/// The paths of class `name`: one list of points for each unbroken line.
std::vector<std::vector<Point>> stretches(const std::string& svg, const std::string& name) {
  std::vector<std::vector<Point>> found;
  const std::string head = "<path class=\"" + name + "\" d=\"";
  const std::size_t begin = svg.rfind(head);  // the legend's comes first
  if (begin == std::string::npos) return found;
  const std::size_t first = begin + head.size();
  std::istringstream path(svg.substr(first, svg.find('"', first) - first));
  for (char command; path >> command;) {
    Point p{};
    if (command == 'h') {
      path >> p.x;
      EXPECT_EQ(p.x, 0);
      continue;
    }
    path >> p.x >> p.y;
    if (command == 'M') found.emplace_back();
    found.back().push_back(p);
  }
  return found;
}

Series series(std::vector<double> values) {
  Series line{"a", {}, std::move(values)};
  for (std::size_t i = 0; i < line.values.size(); ++i) line.steps.push_back(static_cast<double>(i + 1));
  return line;
}
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(RoundTicks, AreOneTwoOrFiveTimesAPowerOfTenApart) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(1, 300, 8), (std::vector<double>{50, 100, 150, 200, 250, 300}));
  const std::vector<double> small = round_ticks(-0.013, 0.021, 4);
  ASSERT_EQ(small.size(), 4u);
  EXPECT_DOUBLE_EQ(small.front(), -0.01);
  EXPECT_DOUBLE_EQ(small.back(), 0.02);
  for (double high : {1e-30, 0.7, 3.0, 9.99, 1e6, 1e30})
    EXPECT_TRUE(round_ticks(0, high, 5).size() >= 3 && round_ticks(0, high, 5).size() <= 6) << high;
}

TEST(LinePlot, PutsValuesInTheirPlaces) {
  const auto lines = stretches(line_plot("t", "u", {series({4, 2, 3, 4})}), "s0");
  ASSERT_EQ(lines.size(), 1u);
  ASSERT_EQ(lines[0].size(), 4u);
  EXPECT_EQ(lines[0][0].y, lines[0][3].y);
  EXPECT_DOUBLE_EQ((lines[0][0].y + lines[0][1].y) / 2, lines[0][2].y);
  EXPECT_LT(lines[0][0].y, lines[0][1].y) << "up is less";
  EXPECT_NEAR(lines[0][1].x - lines[0][0].x, lines[0][3].x - lines[0][2].x, 0.11);
}

TEST(LinePlot, ShowsLogarithmsAlike) {
  const auto lines = stretches(line_plot("t", "u", {series({0.1, 1, 10})}, Scale::log), "s0");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_DOUBLE_EQ(lines[0][0].y - lines[0][1].y, lines[0][1].y - lines[0][2].y);
}

TEST(LinePlot, LeavesAGapWhereThereIsNoNumber) {
  const auto lines = stretches(line_plot("t", "u", {series({1, 2, nan, 3, nan, 2, 1})}), "s0");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].size(), 2u);
  EXPECT_EQ(lines[1].size(), 1u);
  EXPECT_EQ(lines[2].size(), 2u);
}

TEST(LinePlot, KeepsEverySpikeOfALongRun) {
  std::vector<double> values(1'000'000, 1.0);
  values[123'456] = 9;
  values[700'000] = -5;
  const std::string svg = line_plot("t", "u", {series(values)});
  EXPECT_LT(svg.size(), 60'000u);
  const auto lines = stretches(svg, "s0");
  ASSERT_EQ(lines.size(), 1u);
  double top = 1e9, bottom = 0;
  for (const Point& p : lines[0]) top = std::min(top, p.y), bottom = std::max(bottom, p.y);
  EXPECT_GT(bottom - top, 190) << "the plot's height";
}

TEST(LinePlot, IsEmptyWithoutANumber) {
  EXPECT_EQ(line_plot("t", "u", {series({})}), "");
  EXPECT_EQ(line_plot("t", "u", {series({nan, nan})}), "");
  EXPECT_EQ(line_plot("t", "u", {series({0, -1})}, Scale::log), "");
  EXPECT_EQ(stretches(line_plot("t", "u", {series({7})}), "s0").size(), 1u) << "one point is a dot";
}

TEST(LinePlot, NamesItsSeriesWhereThereIsRoom) {
  const auto named = [](const std::string& name) {
    Series other = series({2, 1});
    other.name = name;
    return line_plot("Loss", "nats a token", {series({1, 2}), other}).find(name + "</text>") != std::string::npos;
  };
  EXPECT_TRUE(named("evaluation"));
  EXPECT_FALSE(named(std::string(40, 'x'))) << "over the title";
}

TEST(BarPlot, IsAsLongAsTheTime) {
  const std::string svg = bar_plot("t", {{"all", 1, 2, 3}, {"half", 1, 1, 1}});
  std::vector<double> widths;
  for (std::size_t at = 0; (at = svg.find(" width=\"", at)) != std::string::npos; ++at)
    widths.push_back(std::stod(svg.substr(at + 8)));
  ASSERT_EQ(widths.size(), 2u);
  EXPECT_NEAR(widths[0], 2 * widths[1], 0.11);
  EXPECT_NE(svg.find("2.000 s (1.000 to 3.000)"), std::string::npos);
}

TEST(ReportPage, NeedsNothingElse) {
  RunReport report{"a <run> & \"more\"", {{"loss", "1 < 2"}}, {}, {{"forward", 1, 2, 3}}, {5, 20},
                   "run: {<deck>}\n"};
  for (std::int64_t step = 1; step <= 20; ++step) {
    MetricsRow row;
    row.step = step;
    row.loss = 5 - 0.1f * static_cast<float>(step);
    if (step % 5 == 0) row.eval_loss = row.loss;
    row.grad_norm = 1;
    row.tokens_per_s = 1e5;
    row.expert_load = 1.5f;
    row.restart = step > 10;
    report.rows.push_back(row);
  }
  const std::string page = to_html(report);
  for (const char* there : {"Loss", "Gradient norm", "Throughput", "Time by region", "evaluation", "forward",
                            "a &lt;run&gt; &amp; &quot;more&quot;", "<dd>1 &lt; 2</dd>", "Expert load", "log scale",
                            ">step</text>",
                            "<pre>run: {&lt;deck&gt;}"})
    EXPECT_NE(page.find(there), std::string::npos) << there;
  for (const char* from_elsewhere : {"<script", "http", "src=", "href", "url(", "@import", "<run>", "<deck>"})
    EXPECT_EQ(page.find(from_elsewhere), std::string::npos) << from_elsewhere;
  EXPECT_EQ(stretches(page, "s1").front().size(), 4u);
  const auto marks = [&](const char* name) {
    const std::string head = "<path class=\"" + std::string(name) + "\" d=\"";
    const std::size_t at = page.find(head);
    const std::string path = at == std::string::npos ? "" : page.substr(at + head.size(), page.find('>', at) - at);
    return std::count(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(path.find('"')), 'v');
  };
  EXPECT_EQ(marks("restart"), 1);
  EXPECT_EQ(marks("save"), 2);
  EXPECT_NE(page.find("short lines at the foot: saves; dashed lines: restarts"), std::string::npos);
  report.rows.front().expert_load = 1;
  for (MetricsRow& row : report.rows) row.expert_load = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(to_html(report).find("Expert load"), std::string::npos) << "of a dense model";
}

TEST(ReadMetrics, GivesBackWhatWasAppended) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  EXPECT_THROW(read_metrics(path), Error);
  MetricsRow row;
  row.step = 3;
  row.loss = 0.1f;
  row.eval_loss = std::numeric_limits<float>::infinity();
  row.grad_norm = std::numeric_limits<float>::quiet_NaN();
  row.lr = 3e-4f;
  row.tokens = 1 << 20;
  row.step_ms = 12.5;
  row.tokens_per_s = 1000.25;
  row.skipped = true;
  row.restart = 4;
  {
    MetricsLog log(path, 0);
    EXPECT_TRUE(log.append(row).empty());
  }
  folder.write("metrics.jsonl", test::read_file(path) + R"({"step":4,"tokens":"many","skipped":null,"restart":[]}
{"step":null}
{"step":)");
  const std::vector<MetricsRow> rows = read_metrics(path);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].step, 4);
  EXPECT_EQ(rows[1].tokens, 0);
  EXPECT_FALSE(rows[1].skipped);
  EXPECT_EQ(rows[0].step, 3);
  EXPECT_EQ(rows[0].loss, 0.1f);
  EXPECT_TRUE(rows[0].eval_loss && std::isnan(*rows[0].eval_loss));
  EXPECT_TRUE(std::isnan(rows[0].grad_norm));
  EXPECT_EQ(rows[0].lr, 3e-4f);
  EXPECT_EQ(rows[0].tokens, 1 << 20);
  EXPECT_EQ(rows[0].step_ms, 12.5);
  EXPECT_EQ(rows[0].tokens_per_s, 1000.25);
  EXPECT_TRUE(rows[0].skipped);
  EXPECT_EQ(rows[0].restart, 4);
}

}  // namespace
}  // namespace tessera
