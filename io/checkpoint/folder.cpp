#include "io/checkpoint/folder.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "io/checkpoint/branch.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/access.hpp"
#include "io/files/fault.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "step_", left_behind = "abandoned-";

bool is_folder(const fs::path& path) { return entry_at(path) == Entry::folder; }

/// The entries of a run directory; none, if there is no such directory.
std::vector<fs::path> entries_of(const fs::path& run) {
  return list_folder(run).value_or(std::vector<fs::path>());
}

/// Whether a step is known to be valid, payload not read.
bool known_valid(const fs::path& folder) {
  try {
    return why_invalid(folder).empty();
  } catch (const Error&) {
    return false;  // it cannot be read now
  }
}

/// Whether a step is known to be damaged, by every byte.
bool known_damaged(const fs::path& folder) {
  try {
    if (entry_at(folder / manifest_file) == Entry::file && of_later_format(read_text_file(folder / manifest_file)))
      return false;
    return !Checkpoint(folder).verify().empty();
  } catch (const Error& error) {
    return error.code() != Exit::environment;
  }
}

}  // namespace

// Renamed first, so that a crash in between leaves no half of a checkpoint under its name.
void remove_checkpoint(const fs::path& folder) {
  std::error_code error;
  const fs::path trash = folder.parent_path() / (".trash." + folder.filename().string());
  fs::remove_all(trash, error);
  if (!error) fs::rename(folder, trash, error);
  if (!error) fs::remove_all(trash, error);
  if (error) throw Error(Exit::environment, fmt::format("{}: cannot be removed: {}", folder.string(), error.message()));
}

std::string step_folder(std::int64_t step) { return fmt::format("{}{:08}", prefix, step); }

std::optional<std::int64_t> step_named(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t step = 0;
  const auto [stop, failure] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (failure != std::errc() || name != step_folder(step)) return std::nullopt;
  return step;
}

std::string abandoned_name(std::int64_t branch, std::string_view name) {
  return fmt::format("{}{}_{}", left_behind, branch, name);
}

std::optional<AbandonedName> abandoned(std::string_view name) {
  const std::size_t cut = name.find('_');
  if (!name.starts_with(left_behind) || cut == std::string_view::npos) return std::nullopt;
  AbandonedName parts{0, name.substr(cut + 1)};
  std::from_chars(name.data() + left_behind.size(), name.data() + cut, parts.branch);
  if (parts.branch < 1 || name != abandoned_name(parts.branch, parts.name)) return std::nullopt;
  return parts;
}

std::int64_t bytes_below(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code unknown;
  for (const fs::path& entry : entries_of(folder))
    if (const auto size = fs::file_size(entry, unknown); !unknown) bytes += static_cast<std::int64_t>(size);
  return bytes;
}

std::vector<StepFolder> abandoned_folders(const fs::path& run) {
  std::vector<std::pair<std::int64_t, StepFolder>> found;  // branch number and folder
  for (const fs::path& entry : entries_of(run)) {
    const std::string name = entry.filename().string();
    const std::optional<AbandonedName> parts = abandoned(name);
    const std::optional<std::int64_t> step = parts ? step_named(parts->name) : std::nullopt;
    if (step && is_folder(entry)) found.push_back({parts->branch, {*step, entry}});
  }
  std::ranges::sort(found, {}, [](const auto& each) { return std::pair(each.first, each.second.step); });
  std::vector<StepFolder> folders;
  for (auto& [branch, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

void move_entry(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fault::strike(to);
  fs::rename(from, to, error);
  if (error)
    throw Error(Exit::environment,
                fmt::format("{}: cannot become {}: {}", from.string(), to.string(), error.message()));
}

std::vector<StepFolder> step_folders(const fs::path& run) {
  std::vector<StepFolder> found;
  for (const fs::path& entry : entries_of(run))
    if (const std::optional<std::int64_t> step = step_named(entry.filename().string()); step && is_folder(entry))
      found.push_back({*step, entry});
  std::ranges::sort(found, {}, &StepFolder::step);
  return found;
}

void commit_folder(const fs::path& finished, const fs::path& run, std::int64_t step) {
  const fs::path named = run / step_folder(step);
  make_way(run, named.filename().string());
  if (entry_at(named) != Entry::none) {
    if (known_damaged(named))
      remove_checkpoint(named);
    else
      set_aside(run, named.filename().string());
  }
  move_entry(finished, named);
  try {
    sync_folder(run);
  } catch (const Error&) {
    // A power failure could undo this name: older steps must not be retired for it.
    Problems unsaid;  // the first failure is
    attempt(unsaid, [&] { remove_checkpoint(named); });
    throw;
  }
}

void point_latest(const fs::path& run, std::int64_t step) {
  replace_text_file(run / "latest", step_folder(step) + "\n");
  sync_folder(run);
}

std::string latest_step(const fs::path& run) {
  std::string name;
  std::ifstream file(run / "latest");
  std::getline(file, name);
  return name;
}

namespace {

/// The steps that are kept for the best one: up to the first of `best` that has a valid checkpoint.
std::set<std::int64_t> kept_for_best(const std::vector<StepFolder>& folders, const std::vector<std::int64_t>& best) {
  std::set<std::int64_t> kept;
  for (const std::int64_t step : best) {
    kept.insert(step);
    const auto folder = std::ranges::find(folders, step, &StepFolder::step);
    if (folder != folders.end() && known_valid(folder->path)) break;  // mutation: a_best_step_needs_no_checkpoint
  }
  return kept;
}

}  // namespace

void retire(const fs::path& run, const Retention& retention) {
  std::vector<StepFolder> folders = step_folders(run);
  std::erase_if(folders, [&](const StepFolder& folder) { return folder.step > retention.newest; });
  std::ranges::reverse(folders);
  const std::set<std::int64_t> best = kept_for_best(folders, retention.best);
  std::int64_t valid = 0;
  Problems problems;
  for (const StepFolder& folder : folders) {
    if (valid < retention.keep_last) {
      valid += known_valid(folder.path);
      continue;
    }
    const bool kept = (retention.keep_every > 0 && folder.step % retention.keep_every == 0) ||
                      best.contains(folder.step);  // mutation: the_best_step_is_retired
    if (!kept) attempt(problems, [&] { remove_checkpoint(folder.path); });
  }
  problems.raise();
}

void remove_leftovers(const fs::path& run) {
  std::error_code error;
  for (const fs::path& entry : entries_of(run)) {
    const std::string name = entry.filename().string();
    if (name.starts_with(".trash.") || (name.starts_with(prefix) && name.find(".tmp.") != std::string::npos) ||
        (name.starts_with(left_behind) && name.ends_with(".tmp")))
      fs::remove_all(entry, error);
  }
}

}  // namespace tessera
