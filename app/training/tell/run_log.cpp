#include "app/training/tell/run_log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <span>
#include <utility>

#include "app/training/tell/summary.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/files/access.hpp"
#include "io/files/text_file.hpp"
#include "io/metrics/run_directory.hpp"
#include "io/report/compare_page.hpp"
#include "io/report/report_page.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

std::filesystem::path directory_of(const RunPlan& plan) { return plan.config.checkpoint.dir.get(); }

std::string clock_text(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%F %T} UTC", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

using Facts = std::vector<std::pair<std::string, std::string>>;

/// The line of an evaluation set.
void add_set(Facts& facts, const SetOutcome& set, const std::vector<LoggedSet>& sets) {
  const auto known = std::ranges::find(sets, set.name, &LoggedSet::name);
  if (known == sets.end()) return;  // one of a start before
  const std::string bits = set.bits_a_byte ? fmt::format(", {:.4f} bits a byte", *set.bits_a_byte) : "";
  const std::string best = set.best ? fmt::format("; lowest {:.4f} after step {}", *set.best, set.best_step) : "";
  facts.emplace_back("evaluation of " + set.name,
                     fmt::format("{:.4f}{}{}; {}", set.loss, bits, best, known->extent));
}

/// Figures at the top of report.html, from the rows of all starts.
Facts figures_of(const RunPlan& plan, const std::vector<MetricsRow>& rows, const std::optional<Peak>& peak,
                 const std::vector<LoggedSet>& sets) {
  Facts facts;
  facts.emplace_back("steps", fmt::format("{} of {}", rows.empty() ? 0 : rows.back().step, plan.config.run.steps));
  if (rows.empty()) return facts;
  const Outcome outcome = outcome_of(rows);
  const auto spikes = std::ranges::count_if(rows, [](const MetricsRow& row) { return row.spike; });
  facts.emplace_back("loss", fmt::format("{:.4f}", rows.back().loss));
  if (outcome.eval_loss) facts.emplace_back("evaluation loss", fmt::format("{:.4f}", *outcome.eval_loss));
  if (outcome.best)
    facts.emplace_back("best evaluation", fmt::format("{:.4f} after step {}", *outcome.best, outcome.best_step));
  for (const SetOutcome& set : outcome.sets) add_set(facts, set, sets);
  facts.emplace_back("tokens", count_text(static_cast<double>(rows.back().tokens)));
  const std::int64_t starts = rows.back().restart + 1;
  facts.emplace_back("time in steps",
                     time_text(outcome.seconds) + (starts > 1 ? fmt::format(" of {} starts", starts) : ""));
  const double mean = outcome.seconds / static_cast<double>(rows.size());
  facts.emplace_back("mean step", fmt::format("{:.1f} ms, {} of the model, {}/s", mean * 1e3,
                                              flop_text(plan.model_flops_per_step),
                                              flop_text(plan.model_flops_per_step / mean)));
  if (peak) facts.emplace_back("mean MFU", fmt::format("{:.1f}%: {}", 100 * utilisation(plan, *peak, mean),
                                                       utilisation_text(plan, peak)));
  facts.emplace_back("memory", bytes_text(rows.back().memory_bytes) + " a rank");
  facts.emplace_back("skipped", counted(outcome.skipped, "step") + (spikes > 0 ? ", " + counted(spikes, "spike") : ""));
  return facts;
}

std::vector<std::pair<std::string, float>> shown_sets(const MetricsRow& row) {
  std::vector<std::pair<std::string, float>> shown;
  for (const EvaluatedSet& set : row.eval_sets) shown.emplace_back(set.name, set.loss);
  return shown;
}

/// The newest checkpoint, with its content digest if its manifest can be read.
std::string newest_text(const std::vector<StepFolder>& folders) {
  if (folders.empty()) return "none";
  const std::filesystem::path path = folders.back().path / "manifest.json";
  std::string text = fmt::format("step {}", folders.back().step);
  Problems unreadable;  // a page without a digest says enough
  attempt(unreadable, [&] { text += ", digest " + parse_manifest(read_text_file(path), path).content_digest; });
  return text;
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
  progress_.last_step = step;
  // Rows of an earlier start are cut even if this one records none.
  const auto open = [&](auto& log, const char* name, bool records) {
    const std::filesystem::path path = directory_of(plan) / name;
    if (records || entry_at(path) != Entry::none) log.emplace(path, step);
  };
  open(routing_, routing_file, plan.sizes.recorded_layers > 0);
  open(quantization_, quantization_file, plan.config.precision.statistics_every > 0);
  if (plan_.sizes.recorded_layers > 0) probe_.emplace(directory_of(plan) / routing_probe_file, step);
  if (peak_) console_.line(utilisation_text(plan, peak_));
}

double RunLog::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

bool RunLog::worth_a_line(const MetricsRow& row) const {
  const bool edge = row.step == 1 || row.step == plan_.config.run.steps;
  const std::int64_t every = plan_.config.run.log_every;
  const bool due = every > 0 ? row.step % every == 0 : Clock::now() - printed_ >= std::chrono::seconds(1);
  return edge || row.eval_loss || row.skipped || due;
}

void RunLog::show(const MetricsRow& row) {
  const std::int64_t steps = plan_.config.run.steps;
  const auto made = static_cast<double>(std::max<std::int64_t>(row.step - begun_at_, 1));  // by this start
  const double left = seconds() / made * static_cast<double>(steps - row.step);
  unshown_.ms += row.step_ms;
  unshown_.tokens += row.tokens_per_s * row.step_ms / 1e3;
  ++unshown_.steps;
  if (worth_a_line(row)) {
    printed_ = Clock::now();
    const auto [ms, tokens, count] = std::exchange(unshown_, {});
    const double mean = ms / static_cast<double>(count);
    const std::string line =
        to_line({.step = row.step,
                 .steps = steps,
                 .loss = row.loss,
                 .eval_loss = row.eval_loss,
                 .norm = row.grad_norm,
                 .lr = row.lr,
                 .step_ms = mean,
                 .mfu = peak_ ? std::optional(utilisation(plan_, *peak_, mean / 1e3)) : std::nullopt,
                 .tokens_per_s = tokens / ms * 1e3,
                 .memory_bytes = memory_,
                 .seconds_left = left,
                 .skipped = row.skipped,
                 .spike = row.spike,
                 .eval_sets = shown_sets(row)});
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
  add_bits(whole);
  if (peak_) whole.mfu = utilisation(plan_, *peak_, row.step_ms / 1e3);
  Problems problems = metrics_.append(whole);
  if (routing_) problems.add(routing_->append(row.routing));
  problems.add(log_kept(row));
  events_.append(whole);
  progress_.last_step = row.step;
  longest_wait_ = std::max(longest_wait_, Clock::now() - std::exchange(last_row_, Clock::now()));
  if (Clock::now() >= page_due_) {
    const Clock::time_point begin = Clock::now();
    write_page({}, standing());
    // A long run's page takes a while to write: spend at most a fiftieth of the time on it.
    page_gap_ = std::max<Clock::duration>(std::chrono::seconds(30), 50 * (Clock::now() - begin));
    page_due_ = begin + page_gap_;
  }
  return problems;
}

Problems RunLog::quantized(std::int64_t step, const std::vector<QuantizerLine>& lines) {
  events_.append(step, lines);
  return quantization_->append(step, lines);
}

Problems RunLog::log_kept(const MetricsRow& row) {
  Problems problems;
  if (!probe_ || row.probed.empty()) return problems;
  attempt(problems, [&] {
    const MoeShape& moe = *plan_.model.shape().moe;
    const StepSizes& sizes = plan_.sizes;
    const auto first = std::span(row.probed).first(static_cast<std::size_t>(sizes.mixtures * sizes.slots()));
    const std::vector<double> shares = probe_->kept(row.step, sizes.mixtures, moe.top_k, first);
    std::vector<KeptRow> rows;
    for (std::int64_t block = 0; block < plan_.model.shape().layers && !shares.empty(); ++block)
      if (moe.blocks.contain(block)) rows.push_back({row.step, block, shares[rows.size()]});
    problems.add(routing_->append_kept(rows));
  });
  return problems;
}

void RunLog::evaluated(const MetricsRow& row) {
  MetricsRow whole = row;
  add_bits(whole);
  metrics_.replace_last(whole);
  log_kept(whole).raise();
  events_.append(whole);
  show(whole);
}

void RunLog::add_bits(MetricsRow& row) const {
  for (EvaluatedSet& set : row.eval_sets) {
    const auto known = std::ranges::find(texts_.sets, set.name, &LoggedSet::name);
    if (known != texts_.sets.end()) set.bits_a_byte = bits_a_byte(set.loss, known->tokens, known->bytes);
  }
}

void RunLog::saved(std::int64_t step) {
  progress_.saves.push_back(step);
  write_progress();
}

void RunLog::close(const ClosingReport& closing, const std::string& end) {
  console_.bar("");
  progress_.end = end;
  progress_.ended = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  write_progress();
  write_page(closing, end);
  for (const std::string& difference : texts_.mixed) fmt::print("{} (proof.mixed_hosts)\n", difference);
  fmt::print("{}report: {}\n", closing.text, page_path().string());
}

std::filesystem::path RunLog::page_path() const { return directory_of(plan_) / "report.html"; }

std::string RunLog::standing() const {
  const auto now = std::chrono::system_clock::now();
  // Between two pages lie a step at least, and perhaps a save or an evaluation.
  const Clock::duration most = 4 * std::max(page_gap_, longest_wait_);
  const auto next = std::chrono::duration_cast<std::chrono::system_clock::duration>(most);
  return fmt::format("still running at {}, {} after this start; a page that has not changed by {} is stale: the run "
                     "has then ended without a word, or stands still",
                     clock_text(now), time_text(seconds()), clock_text(now + next));
}

void RunLog::write_progress() {
  const std::filesystem::path path = directory_of(plan_) / record_file;
  Problems problems;
  attempt(problems, [&] { replace_text_file(path, with_progress(read_text_file(path), progress_)); });
  for (const Problem& problem : problems.list())
    fmt::print(stderr, "{} (run.json is not up to date; training and all other files are not affected)\n",
               problem.text);
}

void RunLog::write_page(const ClosingReport& closing, const std::string& end) {
  Problems problems;
  attempt(problems, [&] {
    const std::filesystem::path directory = directory_of(plan_);
    const std::vector<MetricsRow> rows = read_metrics(directory / metrics_file);
    const std::vector<StepFolder> folders = step_folders(directory);
    RunReport report{plan_.config.run.name, directory.string(), figures_of(plan_, rows, peak_, texts_.sets), rows, {},
                     read_starts(read_text_file(directory / record_file)), {}, closing.regions_of, closing.regions,
                     texts_.deck};
    if (routing_) {
      report.routing = read_routing(directory / routing_file);
      report.kept_choices = read_kept(directory / routing_file);
    }
    if (quantization_) report.quantization = read_quantization(directory / quantization_file);
    for (const StepFolder& folder : folders) report.kept.push_back(folder.step);
    report.facts.emplace_back("newest checkpoint", newest_text(folders));
    report.facts.emplace_back("directory", texts_.host + ":" + std::filesystem::absolute(directory).string());
    report.facts.emplace_back("corpus", texts_.corpus);
    report.facts.emplace_back("written", clock_text(std::chrono::system_clock::now()));
    report.facts.emplace_back("end", end);
    replace_text_file(page_path(), to_html(report));
  });
  for (const Problem& problem : problems.list())
    fmt::print(stderr, "{} (report.html is not up to date; training and all other files are not affected)\n",
               problem.text);
}

}  // namespace tessera
