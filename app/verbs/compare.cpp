#include <cmath>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/verbs/verbs.hpp"
#include "core/config/values.hpp"
#include "io/files/access.hpp"
#include "io/files/json_text.hpp"
#include "io/files/text_file.hpp"
#include "io/report/compare_page.hpp"
#include "io/report/grouped_runs.hpp"
#include "io/report/trace_difference.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Reads a run's deck and metrics; adds what is wrong to `problems`.
ComparedRun read_run(const std::string& directory, Problems& problems) {
  ComparedRun run;
  run.name = directory;
  const fs::path folder = directory, deck = folder / "deck.resolved.yaml";
  attempt(problems, [&] {
    if (entry_at(folder / metrics_file) == Entry::none || entry_at(deck) == Entry::none)
      throw Error(Exit::file, directory + ": is no run directory: it needs metrics.jsonl and deck.resolved.yaml");
    run.rows = read_metrics(folder / metrics_file);
    run.quantization = read_quantization(folder / quantization_file);
    run.settings = values_of(parse_saved_deck(read_text_file(deck), deck.string()).config);
  });
  return run;
}

/// A run's figures of each role in a step.
nlohmann::ordered_json quantization_of(const ComparedRun& run, std::int64_t step) {
  auto roles = nlohmann::ordered_json::object();
  for (const char* role : quantizer_roles)
    for (const QuantizerField& field : quantizer_fields)
      if (const RoleFigures of = figures_of_role(run.quantization, step, role, field.field); !of.matrix.empty())
        roles[role][field.key] = {{"median", of.median}, {"worst", of.worst}, {"matrix", of.matrix}};
  return roles;
}

nlohmann::ordered_json to_json(const std::optional<Estimate>& estimate) {
  if (!estimate) return nullptr;
  return {{"mean", estimate->mean},
          {"standard_error", estimate->error ? nlohmann::ordered_json(*estimate->error) : nlohmann::ordered_json()},
          {"runs", estimate->runs}};
}

nlohmann::ordered_json to_json(const GroupedRuns& runs) {
  nlohmann::ordered_json json{{"by", runs.by}, {"differing", runs.keys}, {"groups", nlohmann::ordered_json::array()}};
  for (const RunGroup& group : runs.groups) {
    auto settings = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < runs.keys.size(); ++i) settings[runs.keys[i]] = group.settings[i];
    std::vector<std::string> names;
    for (const ComparedRun* run : group.runs) names.push_back(run->name);
    json["groups"].push_back({{"settings", settings},
                              {"runs", names},
                              {"eval_loss", to_json(group.eval_loss)},
                              {"eval_loss_less_base", to_json(group.eval_less)},
                              {"loss", to_json(group.loss)},
                              {"loss_less_base", to_json(group.loss_less)}});
  }
  return json;
}

nlohmann::ordered_json to_json(const std::vector<ComparedRun>& runs) {
  auto json = nlohmann::ordered_json::object();
  json["differing"] = differing_settings(runs);
  json["runs"] = nlohmann::ordered_json::array();
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  const auto step = [](const std::optional<double>& value, std::int64_t of) {
    return value ? nlohmann::ordered_json(of) : nlohmann::ordered_json();
  };
  const auto common = common_step(runs);
  if (common) json["quantization_step"] = *common;
  const auto real = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  for (const ComparedRun& run : runs) {
    const Outcome outcome = outcome_of(run.rows);
    nlohmann::ordered_json settings = nlohmann::ordered_json::object();
    for (const auto& key : json["differing"])
      if (const auto found = run.settings.find(key.get<std::string>()); found != run.settings.end())
        settings[found->first] = found->second;
    json["runs"].push_back({{"run", run.name},
                            {"step", outcome.step},
                            {"tokens", outcome.tokens},
                            {"loss", number(outcome.loss)},
                            {"eval_loss", number(outcome.eval_loss)},
                            {"best_eval_loss", number(outcome.best)},
                            {"best_eval_step", step(outcome.best, outcome.best_step)},
                            {"tokens_per_s", outcome.tokens_per_s},
                            {"mfu", number(outcome.mfu)},
                            {"expert_load", number(outcome.expert_load)},
                            {"seconds", outcome.seconds},
                            {"skipped", outcome.skipped},
                            {"settings", settings}});
    if (common) json["runs"].back()["quantization"] = quantization_of(run, *common);
    for (const SetOutcome& set : outcome.sets)
      json["runs"].back()["eval_sets"][set.name] = {{"eval_loss", real(set.loss)},
                                                    {"bits_a_byte", number(set.bits_a_byte)},
                                                    {"best_eval_loss", number(set.best)},
                                                    {"best_eval_step", step(set.best, set.best_step)}};
  }
  return json;
}

/// Whether a page is there that shows other runs than `page` does.
bool shows_others(const std::string& path, const std::string& page) {
  std::error_code absent;
  if (!fs::is_regular_file(path, absent) || fs::file_size(path, absent) == 0) return false;
  return runs_on(read_text_file(path)) != runs_on(page);
}

/// Writes the page and returns its path. Without --out none of other runs is replaced: the next free name is taken.
std::string write_page(const std::optional<std::string>& out, const std::string& page) {
  std::string path = out.value_or("compare.html");
  const auto check = [&] { refuse_other_file("--out", path, page.substr(0, page.find('\n'))); };
  check();
  const bool others = shows_others(path, page);
  for (int number = 2; !out && shows_others(path, page); ++number) {
    path = fmt::format("compare-{}.html", number);
    check();
  }
  if (others && out)
    fmt::print(stderr, "{}: in place of a page of other runs: {}\n", path, runs_on(read_text_file(path)));
  else if (others)
    fmt::print(stderr, "compare.html shows other runs, and stays: these are in {}\n", path);
  replace_text_file(path, page);
  return path;
}

/// Compares two traces; returns the exit code.
int run_compare_traces(const CompareOptions& options) {
  if (options.runs.size() != 2) throw Error(Exit::usage, "compare --trace takes two files of debug.trace");
  const TraceComparison comparison = compare_traces(options.runs[0], options.runs[1]);
  const std::optional<TraceDifference>& found = comparison.difference;
  if (options.format == Format::json) {
    nlohmann::ordered_json json = {{"equal", !found}, {"first", comparison.first}, {"last", comparison.last}};
    if (found)
      json["difference"] = {{"step", found->step}, {"stage", found->stage}, {"tensor", found->tensor},
                            {"a", found->a},       {"b", found->b}};
    fmt::print("{}\n", json_text(json, 2));
  } else {
    fmt::print("{}\n", difference_text(comparison));
  }
  return found ? 1 : 0;
}

}  // namespace

int run_compare(const CompareOptions& options) {
  if (options.trace) return run_compare_traces(options);
  Problems problems;
  std::vector<ComparedRun> runs;
  for (const std::string& directory : options.runs) runs.push_back(read_run(directory, problems));
  problems.raise();
  const bool json = options.format == Format::json;
  const auto groups = options.by.empty() ? std::nullopt : std::optional(grouped(runs, options.by));
  std::string page;
  if (options.out || !json)
    page = write_page(options.out, groups ? grouped_page(*groups, runs) : comparison_page(runs));
  if (json)
    fmt::print("{}\n", json_text(groups ? to_json(*groups) : to_json(runs), 2));
  else
    fmt::print("{}{}\n", groups ? grouped_text(*groups) : comparison_text(runs), page);
  return 0;
}

}  // namespace tessera
