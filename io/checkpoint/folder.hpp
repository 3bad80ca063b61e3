#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// "step_00001200".
std::string step_folder(std::int64_t step);
/// The step of such a name; nothing of another.
std::optional<std::int64_t> step_named(std::string_view name);

/// One step folder of a run directory, ascending by step.
struct StepFolder {
  std::int64_t step;
  std::filesystem::path path;
};
std::vector<StepFolder> step_folders(const std::filesystem::path& run);

/// The commit: gives a finished folder its name, which lasts, moving aside what has it. Throws Error{environment}, and
/// then no folder has the name.
void commit_folder(const std::filesystem::path& finished, const std::filesystem::path& run, std::int64_t step);

/// Lets `latest` name a step's folder. Throws Error{environment}.
void point_latest(const std::filesystem::path& run, std::int64_t step);
/// What `latest` says: a folder's name, or nothing.
std::string latest_step(const std::filesystem::path& run);

/// Removes what crashed saves and retirements left behind: temporary folders and trash. Not while anybody saves.
void remove_leftovers(const std::filesystem::path& run);

/// Removes the checkpoints of a run up to step `newest` but for the last `keep_last` valid ones of them and multiples
/// of `keep_every` (0: none). Later steps, of a run that went back, are neither counted nor removed.
struct Retention {
  std::int64_t keep_last = 2, keep_every = 0;
  std::int64_t newest = std::numeric_limits<std::int64_t>::max();
};
void retire(const std::filesystem::path& run, const Retention& retention);

}  // namespace tessera
