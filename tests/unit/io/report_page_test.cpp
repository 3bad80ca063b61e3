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

TEST(LinePlot, AConstantKeepsTheScaleOfItsValue) {
  const auto ticks = [](const std::string& svg) {  // those beside the plot
    std::vector<double> found;
    const std::string before = "\" text-anchor=\"end\" x=\"52\"";
    for (std::size_t at = 0; (at = svg.find(before, at)) != std::string::npos; ++at)
      found.push_back(std::stod(svg.substr(svg.find('>', at) + 1)));
    return found;
  };
  const std::vector<double> zero = ticks(line_plot("t", "u", {series({0, 0, 0})}));
  const std::vector<double> small = ticks(line_plot("t", "u", {series({1e-3, 1e-3})}));
  ASSERT_GE(zero.size(), 2u);
  ASSERT_GE(small.size(), 2u);
  EXPECT_EQ(zero.front(), 0) << "a share is never negative";
  EXPECT_GE(small.front(), 0.9e-3);
  EXPECT_LE(small.back(), 1.1e-3);
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
  const std::string svg = bar_plot("t", "s", {{"all", 1, 2, 3}, {"half", 1, 1, 1}});
  std::vector<double> widths;
  for (std::size_t at = 0; (at = svg.find(" width=\"", at)) != std::string::npos; ++at)
    widths.push_back(std::stod(svg.substr(at + 8)));
  ASSERT_EQ(widths.size(), 2u);
  EXPECT_NEAR(widths[0], 2 * widths[1], 0.11);
  EXPECT_NE(svg.find("2.000 s (1.000 to 3.000)"), std::string::npos);
}

TEST(ReportPage, NeedsNothingElse) {
  RunReport report;
  report.name = "a <run> & \"more\"";
  report.directory = "runs/<last>";
  report.facts = {{"loss", "1 < 2"}};
  report.regions_of = "of this start";
  report.regions = {{"forward", 1, 2, 3}};
  report.kept = {5, 20};
  report.deck = "run: {<deck>}\n";
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
                            "<h1>a &lt;run&gt; &amp; &quot;more&quot;: runs/&lt;last&gt;</h1>", "s, of this start",
                            "<dd>1 &lt; 2</dd>", "Expert load", "log scale",
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
  EXPECT_NE(page.find("green lines at the foot: checkpoints; dashed lines: restarts; bars:"), std::string::npos);
  report.rows.front().expert_load = 1;
  for (MetricsRow& row : report.rows) row.expert_load = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(to_html(report).find("Expert load"), std::string::npos) << "of a dense model";
}

/// Text of the row of start `number` (from 1) in the table of starts, without its tags.
std::string start_row(const std::string& page, int number) {
  const std::string head = "<tr><th>" + std::to_string(number) + "</th>";
  const std::size_t begin = page.find(head);
  std::string text;
  bool within = false;
  if (begin == std::string::npos) return text;
  for (const char c : page.substr(begin, page.find("</tr>", begin) - begin)) {
    if (c == '<' && !text.empty() && text.back() != '|') text += '|';
    if (c == '<' || c == '>')
      within = c == '<';
    else if (!within)
      text += c;
  }
  return text;
}

TEST(ReportPage, TellsTheStartsApart) {
  RunReport report;
  report.starts.resize(4);
  for (std::size_t i = 0; i < 4; ++i) {
    RecordedStart& start = report.starts[i];
    start.restart = static_cast<std::int64_t>(i);
    start.started = "2026-11-0" + std::to_string(i + 1) + "T12:00:00Z";
    start.hosts = "node" + std::to_string(i);
    start.program = "0.1.0 abc";
    start.recipe = i < 2 ? "nvfp4" : "bf16";
    start.ranks = 2;
    start.threads = 3;
  }
  report.starts[0].progress = {40, {10, 20, 30, 40}, "stopped after step 40 of 90 (SIGUSR1)", "2026"};
  report.starts[1].step = 40;  // killed after step 57, having saved at 50
  report.starts[1].reached = 40;
  report.starts[1].progress = {50, {50}, "", ""};
  report.starts[2].step = 30;  // goes back to 30
  report.starts[2].reached = 57;
  report.starts[2].resumed_from = "/runs/a/step_00000030";
  report.starts[2].changes = {{"precision.recipe", "nvfp4", "bf16"}};
  report.starts[2].progress = {60, {60}, "all steps done", "2026"};
  report.starts[3].step = 60;
  report.starts[3].reached = 60;
  for (std::int64_t step = 1; step <= 65; ++step) {
    MetricsRow row;
    row.step = step;
    row.loss = 2;
    row.step_ms = 1000;
    row.restart = step <= 30 ? 0 : step <= 60 ? 2 : 3;
    report.rows.push_back(row);
  }
  report.kept = {30, 60};
  const std::string page = to_html(report);
  EXPECT_EQ(start_row(page, 1),
            "1|1 to 40|2026-11-01 12:00:00, 0:30 in steps|2 ranks of 3 threads on node0, 0.1.0 abc, nvfp4|"
            "stopped after step 40 of 90 (SIGUSR1)|");
  EXPECT_EQ(start_row(page, 2),
            "2|41 to 57|2026-11-02 12:00:00, 0:00 in steps|2 ranks of 3 threads on node1, 0.1.0 abc, nvfp4|"
            "without a word: killed, or its machine|");
  EXPECT_EQ(start_row(page, 3),
            "3|31 to 60|2026-11-03 12:00:00, 0:30 in steps|2 ranks of 3 threads on node2, 0.1.0 abc, bf16|"
            "all steps done|back from step 57 to 30; from /runs/a/step_00000030; precision.recipe: nvfp4 -&gt; bf16|");
  EXPECT_EQ(start_row(page, 4),
            "4|61 to 65|2026-11-04 12:00:00, 0:05 in steps|2 ranks of 3 threads on node3, 0.1.0 abc, bf16|")
      << "it still runs";
  const auto marks = [&](const std::string& name) {  // in the first plot
    const std::size_t at = page.find("<path class=\"" + name + "\" d=\"");
    const std::string path = at == std::string::npos ? "" : page.substr(at, page.find("\">", at) - at);
    return std::count(path.begin() + static_cast<std::ptrdiff_t>(path.find(" d=")), path.end(), 'v');
  };
  EXPECT_EQ(marks("save"), 2) << "those that are there";
  EXPECT_EQ(marks("removed"), 4) << "10, 20, 40 and 50";
}

TEST(Plots, TicksAreWholeAtBothEdges) {
  // Any axis: the texts of ticks lie within the page, as wide as their letters are in a wide font.
  for (double high : {9.0, 10.0, 100.0, 999.0, 1000.0, 1e4, 12'500.0, 1e5, 1e6, 2.5e7, 1e9})
    for (double scale : {1e-9, 2.5e-5, 1e-3, 1.0, 123.456, 98'765.0, 1e12}) {
      Series line{"a", {1, high}, {scale, 1.001 * scale}};
      const std::string svg = line_plot("t", "u", {line});
      for (std::size_t at = 0; (at = svg.find("<text class=\"tick\"", at)) != std::string::npos; ++at) {
        const std::string tag = svg.substr(at, svg.find("</text>", at) - at);
        const std::string text = tag.substr(tag.find('>') + 1);
        const double x = std::stod(tag.substr(tag.find(" x=\"") + 4));
        const double letters = 7.6 * static_cast<double>(text.size());
        const std::size_t narrowed = tag.find("textLength=\"");
        const double wide = narrowed == std::string::npos ? letters : std::stod(tag.substr(narrowed + 12));
        const bool middle = tag.find("\"middle\"") != std::string::npos;
        EXPECT_GE(x - (middle ? wide / 2 : wide), 0) << tag;
        EXPECT_LE(x + (middle ? wide / 2 : 0), 440) << tag;
      }
    }
}

TEST(Plots, TicksBesideEachOtherHaveDifferentTexts) {
  for (double low : {0.0, 3.14159, 10.0, 1234.5, -7.25})
    for (double range : {0.004, 0.5, 3.0, 1000.0, 25'000.0}) {
      const std::string svg = line_plot("t", "u", {{"a", {1, 2}, {low, low + range}}});
      std::vector<std::string> texts;
      for (std::size_t at = 0; (at = svg.find("text-anchor=\"end\"", at)) != std::string::npos; ++at) {
        const std::size_t begin = svg.find('>', at) + 1;
        texts.push_back(svg.substr(begin, svg.find('<', begin) - begin));
      }
      EXPECT_GE(texts.size(), 2u);
      EXPECT_EQ(std::adjacent_find(texts.begin(), texts.end()), texts.end()) << low << " " << range;
    }
}

TEST(LinePlot, BeginsWhereThePageDoes) {
  const Series late{"a", {50, 100}, {1, 2}};
  const auto lines = stretches(line_plot("t", "u", {late}, Scale::linear, {}, Span{1, 100}), "s0");
  EXPECT_NEAR(lines[0][0].x, 60 + 368 * 49.0 / 99, 0.1);
  EXPECT_NEAR(lines[0][1].x, 60 + 368, 0.1);
}

TEST(RunRecord, KeepsTheCourseOfEachStart) {
  RunRecord record;
  record.name = "a";
  record.recipe = "nvfp4";
  record.ranks = {{"one", -1, ""}, {"two", -1, ""}};
  record.version = "0.1.0";
  record.git_sha = "abc";
  const std::string first = with_progress(to_json(record, ""), {30, {10, 30}, "stopped", "2026-11-01T12:00:00Z"});
  record.restart = 1;
  record.step = 10;
  record.reached = 30;
  record.changes = {{"optimizer.lr", "0.1", "0.2"}};
  const std::string text = with_progress(with_progress(to_json(record, first), {12, {12}}), {14, {12, 14}});
  const std::vector<RecordedStart> starts = read_starts(text);
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[0].progress.saves, (std::vector<std::int64_t>{10, 30}));
  EXPECT_EQ(starts[0].progress.end, "stopped");
  EXPECT_EQ(starts[0].hosts, "one two");
  EXPECT_EQ(starts[0].recipe, "nvfp4");
  EXPECT_EQ(starts[0].program, "0.1.0 abc");
  EXPECT_EQ(starts[1].step, 10);
  EXPECT_EQ(starts[1].reached, 30);
  EXPECT_EQ(starts[1].progress.last_step, 14);
  EXPECT_EQ(starts[1].progress.saves, (std::vector<std::int64_t>{12, 14}));
  EXPECT_EQ(starts[1].progress.end, "");
  EXPECT_EQ(starts[1].changes.at(0).now, "0.2");
  for (const char* odd : {"{}", "{\"starts\":[]}", "{\"starts\":[1,{}]}", "{\"starts\":[{\"saves\":3,\"hosts\":[4]}]}"})
    EXPECT_NO_THROW(read_starts(odd)) << odd;
  EXPECT_THROW(read_starts("[]"), Error);
  EXPECT_THROW(with_progress("{\"starts\":[]}", {}), Error);
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
