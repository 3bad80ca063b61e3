#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/verbs/verbs.hpp"
#include "io/checkpoint/branch.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/files/access.hpp"
#include "io/files/json_text.hpp"
#include "io/files/run_lock.hpp"
#include "io/metrics/console.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// The newest of the checkpoints that a run can go on from, payload not read; nothing, if all are damaged.
std::optional<std::int64_t> newest_valid(const std::vector<StepFolder>& folders) {
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder)
    if (why_invalid(folder->path).empty()) return folder->step;
  return std::nullopt;
}

/// The step that a run would resume from, by every byte of it, and what is wrong with the later ones.
struct Newest {
  std::optional<std::int64_t> step{};           ///< nothing: all are damaged
  std::map<std::int64_t, std::string> later{};  ///< damage by step
};
Newest newest_sound(const std::vector<StepFolder>& folders) {
  Newest newest;
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    std::string damage = why_invalid(folder->path);
    if (damage.empty()) damage = fmt::format("{}", fmt::join(Checkpoint(folder->path).verify(), "\n"));
    if (damage.empty()) {
      newest.step = folder->step;
      return newest;
    }
    newest.later[folder->step] = damage;
  }
  return newest;
}

std::string steps_text(const std::vector<StepFolder>& folders) {
  std::vector<std::int64_t> steps;
  for (const StepFolder& folder : folders) steps.push_back(folder.step);
  return steps.empty() ? "it holds none" : fmt::format("it holds {}", fmt::join(steps, ", "));
}

/// Adds what is wrong with the steps behind the newest sound one, if that is to be removed. Likewise if none is sound:
/// then a part of each may be all that is left. Else tells of the damaged ones that stay.
void refuse_beside_damage(const CheckpointRmOptions& options, const Newest& newest,
                          const std::vector<StepFolder>& found, Problems& problems) {
  const auto goes = [&](std::int64_t step) {
    return std::ranges::find(options.steps, step) != options.steps.end();
  };
  const bool readable = std::ranges::any_of(
      found, [](const StepFolder& folder) { return why_invalid(folder.path).empty(); });
  const bool lost = !newest.step && readable;
  if (lost)
    problems.add(Exit::file, fmt::format("{}: no step from which the run could go on is sound, so nothing is removed",
                                         options.run));
  for (const auto& [step, damage] : newest.later)
    if (lost || (newest.step && goes(*newest.step)))
      problems.add(Exit::file, damage);
    else if (!goes(step))
      fmt::print(stderr, "{}\n", damage);
}

/// The checkpoints to remove. Adds a problem for each that is not there or must stay.
std::vector<StepFolder> chosen(const CheckpointRmOptions& options, Problems& problems) {
  const std::vector<StepFolder> folders = step_folders(options.run);
  const Newest newest = newest_sound(folders);
  std::vector<StepFolder> found;
  if (options.abandoned == Abandoned::removed) found = abandoned_folders(options.run);
  for (const std::int64_t step : std::set(options.steps.begin(), options.steps.end())) {
    const auto folder = std::ranges::find(folders, step, &StepFolder::step);
    if (folder == folders.end())
      problems.add(Exit::file, fmt::format("{}: there is no step {}; {}", options.run, step, steps_text(folders)));
    else if (step == newest.step)
      problems.add(Exit::file, fmt::format("{}: is the newest valid checkpoint, from which the run goes on, and stays; "
                                           "of a run that nobody needs any more, remove the whole directory",
                                           folder->path.string()));
    else
      found.push_back(*folder);
  }
  refuse_beside_damage(options, newest, found, problems);
  for (const StepFolder& folder : found)
    attempt(problems, [&] { why_invalid(folder.path); });  // throws where a file cannot be read now
  return found;
}

/// Points `latest` at the newest valid checkpoint, if it names another: a damaged one, which may have been removed.
void settle_latest(const fs::path& run) {
  const std::optional<std::int64_t> newest = newest_valid(step_folders(run));
  if (newest && latest_step(run) != step_folder(*newest)) point_latest(run, *newest);
}

std::int64_t bytes_of(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, error))
    if (entry.is_regular_file(error)) bytes += static_cast<std::int64_t>(entry.file_size(error));
  return bytes;
}

}  // namespace

int run_checkpoint_rm(const CheckpointRmOptions& options) {
  if (options.steps.empty() && options.abandoned == Abandoned::kept)
    throw Error(Exit::usage, "name steps to remove, or --abandoned; `tessera checkpoint ls` lists them");
  if (entry_at(options.run) != Entry::folder || !is_run(options.run)) {
    const std::string runs = runs_text(options.run);
    throw Error(Exit::file, options.run + ": is no run directory" + (runs.empty() ? "" : ": " + runs));
  }
  std::optional<RunLock> lock;  // of a run that trains nothing is removed, and none begins meanwhile
  if (options.doing == Doing::it) {
    lock.emplace(options.run);
    settle_branch(options.run);
    remove_leftovers(options.run);
  }
  Problems problems;
  const std::vector<StepFolder> folders = chosen(options, problems);
  problems.raise();
  auto paths = nlohmann::ordered_json::array();
  std::int64_t bytes = 0;
  for (const StepFolder& folder : folders) {
    const std::int64_t held = bytes_of(folder.path);
    if (lock) attempt(problems, [&] { remove_checkpoint(folder.path); });
    if (std::error_code unknown; lock && fs::exists(folder.path, unknown)) continue;
    bytes += held;
    paths.push_back(folder.path.string());
    if (options.format == Format::text)
      fmt::print("{} {} ({})\n", lock ? "removed" : "would remove", folder.path.string(), bytes_text(held));
  }
  if (lock) attempt(problems, [&] { settle_latest(options.run); });
  if (options.format == Format::json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"removed", paths}, {"bytes", bytes}, {"dry_run", !lock}}));
  else
    fmt::print("{}, {}\n", counted(std::ssize(paths), "checkpoint"), bytes_text(bytes));
  problems.raise();
  return 0;
}

}  // namespace tessera
