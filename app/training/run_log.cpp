#include "app/training/run_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "app/training/summary.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/files/text_file.hpp"
#include "io/report/report_page.hpp"
#include "io/metrics/run_directory.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

std::filesystem::path directory_of(const RunPlan& plan) { return plan.config.checkpoint.dir.get(); }

/// Facts at the top of report.html, from the rows of all starts.
std::vector<std::pair<std::string, std::string>> facts_of(const RunPlan& plan, const std::vector<MetricsRow>& rows,
                                                          const std::optional<Peak>& peak) {
  std::vector<std::pair<std::string, std::string>> facts;
  facts.emplace_back("steps", fmt::format("{} of {}", rows.empty() ? 0 : rows.back().step, plan.config.run.steps));
  if (rows.empty()) return facts;
  double seconds = 0;
  std::optional<float> evaluated;
  std::int64_t skipped = 0, spikes = 0;
  for (const MetricsRow& row : rows) {
    seconds += row.step_ms / 1e3;
    skipped += row.skipped;
    spikes += row.spike;
    if (row.eval_loss) evaluated = row.eval_loss;
  }
  facts.emplace_back("loss", fmt::format("{:.4f}", rows.back().loss));
  if (evaluated) facts.emplace_back("evaluation loss", fmt::format("{:.4f}", *evaluated));
  facts.emplace_back("tokens", count_text(static_cast<double>(rows.back().tokens)));
  facts.emplace_back("time in steps", time_text(seconds));
  const double mean = seconds / static_cast<double>(rows.size());
  facts.emplace_back("mean step", fmt::format("{:.1f} ms, {} of the model, {}/s", mean * 1e3,
                                              flop_text(plan.model_flops_per_step),
                                              flop_text(plan.model_flops_per_step / mean)));
  if (peak) facts.emplace_back("mean MFU", fmt::format("{:.1f}%", 100 * utilisation(plan, *peak, mean)));
  facts.emplace_back("formula", utilisation_text(plan, peak));
  facts.emplace_back("ranks", fmt::format("{}, {} each", plan.ranks.world.size,
                                          counted(plan.config.run.threads.get(), "thread")));
  facts.emplace_back("memory", bytes_text(rows.back().memory_bytes) + " a rank");
  facts.emplace_back("restarts", fmt::format("{}", rows.back().restart));
  facts.emplace_back("skipped", counted(skipped, "step") + (spikes > 0 ? ", " + counted(spikes, "spike") : ""));
  return facts;
}

}  // namespace

RunLog::RunLog(const RunPlan& plan, std::int64_t step, std::optional<Peak> peak, RunTexts texts)
    : plan_(plan),
      begun_at_(step),
      peak_(std::move(peak)),
      texts_(std::move(texts)),
      metrics_(directory_of(plan) / metrics_file, step),
      events_(directory_of(plan), step, metrics_.restarts()),
      memory_(total(plan.memory)) {
  for (const StepFolder& folder : step_folders(directory_of(plan))) saves_.push_back(folder.step);
  if (peak_) console_.line(utilisation_text(plan, peak_));
}

double RunLog::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

bool RunLog::worth_a_line(const MetricsRow& row) const {
  const bool edge = row.step == 1 || row.step == plan_.config.run.steps;
  return edge || row.eval_loss || row.skipped || Clock::now() - printed_ >= std::chrono::seconds(1);
}

void RunLog::show(const MetricsRow& row) {
  const std::int64_t steps = plan_.config.run.steps;
  const auto made = static_cast<double>(std::max<std::int64_t>(row.step - begun_at_, 1));  // by this start
  const double left = seconds() / made * static_cast<double>(steps - row.step);
  if (worth_a_line(row)) {
    printed_ = Clock::now();
    const std::string line =
        to_line({.step = row.step,
                 .steps = steps,
                 .loss = row.loss,
                 .eval_loss = row.eval_loss,
                 .norm = row.grad_norm,
                 .lr = row.lr,
                 .step_ms = row.step_ms,
                 .mfu = peak_ ? std::optional(utilisation(plan_, *peak_, row.step_ms / 1e3)) : std::nullopt,
                 .tokens_per_s = row.tokens_per_s,
                 .memory_bytes = memory_,
                 .seconds_left = left,
                 .skipped = row.skipped,
                 .spike = row.spike});
    row.skipped ? console_.warning(line) : console_.line(line);
  }
  if (row.step < steps && (printed_ > drawn_ || Clock::now() - drawn_ >= std::chrono::milliseconds(100))) {
    drawn_ = Clock::now();
    console_.bar(to_bar(row.step, steps, left));
  }
}

Problems RunLog::row(const MetricsRow& row) {
  show(row);
  MetricsRow whole = row;
  whole.restart = metrics_.restarts();
  whole.ranks = plan_.ranks.world.size;
  whole.memory_bytes = memory_;
  whole.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (peak_) whole.mfu = utilisation(plan_, *peak_, row.step_ms / 1e3);
  Problems problems = metrics_.append(whole);
  events_.append(whole);
  if (Clock::now() >= page_due_) {
    const Clock::time_point begin = Clock::now();
    write_page({}, fmt::format("still running, {} after this start", time_text(seconds())));
    // A long run's page takes a while to write: spend at most a fiftieth of the time on it.
    page_due_ = begin + std::max<Clock::duration>(std::chrono::seconds(30), 50 * (Clock::now() - begin));
  }
  return problems;
}

void RunLog::evaluated(const MetricsRow& row) {
  metrics_.replace_last(row);
  events_.append(row);
  show(row);
}

void RunLog::close(const ClosingReport& closing, const std::string& end) {
  console_.bar("");
  write_page(closing.regions, end);
  fmt::print("{}report: {}\n", closing.text, page_path().string());
}

std::filesystem::path RunLog::page_path() const { return directory_of(plan_) / "report.html"; }

void RunLog::write_page(const std::vector<Bar>& regions, const std::string& end) {
  Problems problems;
  attempt(problems, [&] {
    const std::vector<MetricsRow> rows = read_metrics(directory_of(plan_) / metrics_file);
    RunReport report{plan_.config.run.name, facts_of(plan_, rows, peak_), rows, regions, saves_, texts_.deck};
    report.facts.emplace_back("corpus", texts_.corpus);
    report.facts.emplace_back("end", end);
    replace_text_file(page_path(), to_html(report));
  });
  for (const Problem& problem : problems.list())
    fmt::print(stderr, "{} (report.html is not up to date; training and all other files are not affected)\n",
               problem.text);
}

}  // namespace tessera
