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

/// What a step folder or file is called once branch `branch` (from 1) of its run has left it behind:
/// "abandoned-1_step_00001200".
std::string abandoned_name(std::int64_t branch, std::string_view name);
/// The two parts of such a name; nothing of another.
struct AbandonedName {
  std::int64_t branch;
  std::string_view name;
};
std::optional<AbandonedName> abandoned(std::string_view name);

/// One checkpoint of a run directory.
struct StepFolder {
  std::int64_t step;
  std::filesystem::path path;
};
/// The run's own, from which it goes on; ascending by step.
std::vector<StepFolder> step_folders(const std::filesystem::path& run);
/// Those that its branches have left behind, by branch and step: nothing goes on from them unless told to by their
/// path.
std::vector<StepFolder> abandoned_folders(const std::filesystem::path& run);

/// Renames. Throws Error{environment}.
void move_entry(const std::filesystem::path& from, const std::filesystem::path& to);

/// The commit: gives a finished folder its name, which lasts. What has the name is set aside where a branch leaves it
/// behind, else discarded: it proved invalid. Throws Error{environment}, and then no folder has the name.
void commit_folder(const std::filesystem::path& finished, const std::filesystem::path& run, std::int64_t step);

/// Lets `latest` name a step's folder. Throws Error{environment}.
void point_latest(const std::filesystem::path& run, std::int64_t step);
/// What `latest` says: a folder's name, or nothing.
std::string latest_step(const std::filesystem::path& run);

/// Removes what crashed saves and retirements left behind: temporary folders and trash. Not while anybody saves.
void remove_leftovers(const std::filesystem::path& run);

/// Removes the checkpoints of a run up to step `newest` but for the last `keep_last` valid ones of them and multiples
/// of `keep_every` (0: none). Later steps, which proved invalid or are about to be set aside, are neither counted nor
/// removed.
struct Retention {
  std::int64_t keep_last = 2, keep_every = 0;
  std::int64_t newest = std::numeric_limits<std::int64_t>::max();
};
void retire(const std::filesystem::path& run, const Retention& retention);

}  // namespace tessera
