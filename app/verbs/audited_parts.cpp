#include "app/verbs/audited_parts.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "app/training/start/changes.hpp"
#include "core/config/recipe_schedule.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/files/access.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Throws Error{file} for a path that is no run directory, with the one to name if it lies in one.
void require_run(const fs::path& path) {
  const auto refuse = [&](const std::string& why) { throw Error(Exit::file, path.string() + ": " + why); };
  if (entry_at(path) != Entry::folder) refuse("is no run directory");
  if (is_hf_folder(path)) refuse("is a Hugging Face folder, which has no steps: an audit needs a run directory");
  if (entry_at(path / manifest_file) == Entry::none) return;
  const fs::path folder = fs::absolute(path / "").lexically_normal().parent_path();
  const std::optional<std::int64_t> step = step_named(folder.filename().string());
  const std::string last = step ? fmt::format(", with --to {} to end with this one", *step) : "";
  refuse(fmt::format("is a checkpoint, and an audit needs the run directory around it: name {}{}",
                     folder.parent_path().string(), last));
}

/// Throws Error{file} unless a step that an option names is there. `held`: the valid steps, as text.
void require_step(const fs::path& run, const char* option, std::int64_t step, const std::string& held) {
  std::string why;
  for (const StepFolder& folder : step_folders(run))
    if (folder.step == step && (why = why_invalid(folder.path)).empty()) return;
  throw Error(Exit::file, fmt::format("{}: holds no valid step {}, which {} names: it {}{}", run.string(), step, option,
                                      held, why.empty() ? "" : "; " + why));
}

/// The checkpoints of an audit, ascending: it begins with the first and compares the others.
std::vector<StepFolder> checkpoints_of(const AuditOptions& options) {
  require_run(options.run);
  const std::int64_t from = options.from.value_or(0);
  if (options.from && options.to && from >= *options.to)
    throw Error(Exit::usage, fmt::format("--from {} --to {}: an audit needs a later step to compare with", from,
                                         *options.to));
  std::vector<StepFolder> chosen;
  std::string steps;
  for (const StepFolder& folder : step_folders(options.run)) {
    if (!why_invalid(folder.path).empty()) continue;
    steps += fmt::format("{}{}", steps.empty() ? "" : ", ", folder.step);
    if (folder.step >= from && folder.step <= options.to.value_or(folder.step)) chosen.push_back(folder);
  }
  const std::string held = steps.empty() ? "holds none" : "holds " + steps;
  const bool fresh = options.from == 0;  // begins with drawn weights, which no checkpoint holds
  if (options.from && !fresh) require_step(options.run, "--from", from, held);
  if (options.to) require_step(options.run, "--to", *options.to, held);
  if (fresh && (chosen.empty() || chosen.front().step != 0)) chosen.insert(chosen.begin(), StepFolder{0, {}});
  if (chosen.size() < 2)
    throw Error(Exit::file, fmt::format("{}: {}, and an audit needs two valid steps, or one and --from 0", options.run,
                                        held));
  return chosen;
}

/// What to do about checkpoints between which nothing can be audited: `all[at - 1]` and `all[at]`.
std::string around(const std::vector<StepFolder>& all, std::size_t at) {
  std::string remedy;
  if (at > 1) remedy = fmt::format(": audit up to step {0} with --to {0}", all[at - 1].step);
  if (at + 1 < all.size())
    remedy += fmt::format("{} what follows with --from {}", remedy.empty() ? ": audit" : ", and", all[at].step);
  return remedy;
}

/// Throws Error{usage} if a checkpoint records a change at a step between the one before it and its own. No checkpoint
/// of that step is left, and one deck cannot make the steps again. Reads Origin::changes.
void refuse_changes_within(const std::vector<StepFolder>& all, std::size_t at) {
  std::istringstream lines(Checkpoint(all[at].path).changes());
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view word = "step ";
    std::int64_t step = 0;
    if (!line.starts_with(word)) continue;
    const auto [end, failure] = std::from_chars(line.data() + word.size(), line.data() + line.size(), step);
    const std::string_view what(end, static_cast<std::size_t>(line.data() + line.size() - end));
    const std::size_t colon = what.find(": ", 2);
    const bool inside = failure == std::errc() && step > all[at - 1].step && step < all[at].step;
    const bool matters = !what.starts_with(": built differently") && !what.starts_with(": eval.");
    if (!inside || colon == std::string_view::npos || !matters) continue;
    throw Error(Exit::usage,
                fmt::format("{} changed after step {} ({}), of which no checkpoint is left, so that the steps {} to {} "
                            "cannot be made again{}",
                            what.substr(2, colon - 2), step, what.substr(colon + 2), all[at - 1].step + 1,
                            all[at].step, around(all, at)));
  }
}

/// Throws Error{usage} if precision.schedule changes the recipe within a part.
void refuse_recipes_within(const AuditedPart& part, const RunConfig& config) {
  const std::int64_t last = last_step_of(config, segment_of(config, part.checkpoints.front().step + 1));
  if (last < part.checkpoints.back().step)
    throw Error(Exit::usage, fmt::format("the recipe changes after step {} (precision.schedule): audit up to that step "
                                         "with --to {}, and what follows with --from {}",
                                         last, last, last));
}

std::vector<AuditedPart> parts_of(const std::vector<StepFolder>& all) {
  std::vector<AuditedPart> parts;
  std::optional<SavedRun> before;  // the checkpoint before, if it was compared too: its deck made the steps up to it
  for (std::size_t i = 1; i < all.size(); ++i) {
    SavedRun now(all[i].path);
    refuse_changes_within(all, i);
    std::vector<KeyChange> changes;
    if (before) changes = changes_since(*before, {now.deck.config, now.manifest.world_size}, now.manifest.corpus_hash);
    if (!before || !changes.empty()) {  // mutation: one_deck_for_all_steps
      std::vector<std::string> texts;
      for (const KeyChange& change : changes)
        texts.push_back(fmt::format("{} {} -> {}", change.key, change.before, change.now));
      parts.push_back({{all[i - 1]}, fmt::format("{}", fmt::join(texts, "; "))});
    }
    parts.back().checkpoints.push_back(all[i]);
    refuse_recipes_within(parts.back(), now.deck.config);
    before.emplace(std::move(now));
  }
  return parts;
}

}  // namespace

std::vector<AuditedPart> audited_parts(const AuditOptions& options, Control& control) {
  std::string text;  // a line of a part: "+" and its changes; of a checkpoint: step and path
  Problems problems;
  if (control.rank() == 0)
    attempt(problems, [&] {
      for (const AuditedPart& part : parts_of(checkpoints_of(options))) {
        text += "+" + part.changed + "\n";
        for (const StepFolder& one : part.checkpoints) text += fmt::format("{} {}\n", one.step, one.path.string());
      }
    });
  control.agree(problems);
  std::istringstream lines(control.broadcast(text));
  std::vector<AuditedPart> parts;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('+')) {
      parts.push_back({{}, line.substr(1)});
      continue;
    }
    const auto space = line.find(' ');
    parts.back().checkpoints.push_back({std::stoll(line.substr(0, space)), line.substr(space + 1)});
  }
  return parts;
}

}  // namespace tessera
