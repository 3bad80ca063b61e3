#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/verbs/verbs.hpp"
#include "core/config/values.hpp"
#include "io/files/text_file.hpp"
#include "io/report/compare_page.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Reads a run's deck and metrics; adds what is wrong to `problems`.
ComparedRun read_run(const std::string& directory, Problems& problems) {
  ComparedRun run;
  run.name = directory;
  const fs::path folder = directory, deck = folder / "deck.resolved.yaml";
  std::error_code unknown;
  if (!fs::exists(folder / metrics_file, unknown) || !fs::exists(deck, unknown)) {
    problems.add(Exit::file, directory + ": is no run directory: it needs metrics.jsonl and deck.resolved.yaml");
    return run;
  }
  attempt(problems, [&] {
    run.rows = read_metrics(folder / metrics_file);
    run.settings = values_of(parse_saved_deck(read_text_file(deck), deck.string()).config);
  });
  return run;
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
  }
  return json;
}

}  // namespace

int run_compare(const CompareOptions& options) {
  Problems problems;
  std::vector<ComparedRun> runs;
  for (const std::string& directory : options.runs) runs.push_back(read_run(directory, problems));
  problems.raise();
  const std::string page = comparison_page(runs);
  refuse_other_file("--out", options.out, page.substr(0, page.find('\n')));
  replace_text_file(options.out, page);
  if (options.format == Format::json)
    fmt::print("{}\n", to_json(runs).dump(2));
  else
    fmt::print("{}{}\n", comparison_text(runs), options.out);
  return 0;
}

}  // namespace tessera
