#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The name of a step's folder, "step_00001200".
std::string step_folder(std::int64_t step);
/// The step of such a name; nothing for another name.
std::optional<std::int64_t> step_named(std::string_view name);

/// The name that a step folder or file gets when branch `branch` (from 1) of its run leaves it behind:
/// "abandoned-1_step_00001200".
std::string abandoned_name(std::int64_t branch, std::string_view name);
/// The two parts of such a name; nothing for another name.
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
/// The checkpoints from which the run goes on, ascending by step. Throws Error{environment} if `run` is there and
/// cannot be listed.
std::vector<StepFolder> step_folders(const std::filesystem::path& run);
/// Bytes of the files in a folder.
std::int64_t bytes_below(const std::filesystem::path& folder);
/// The checkpoints that branches have left behind, by branch and step. They are used only by their path.
std::vector<StepFolder> abandoned_folders(const std::filesystem::path& run);

/// Renames a file or folder. Throws Error{environment}.
void move_entry(const std::filesystem::path& from, const std::filesystem::path& to);

/// The commit: renames a finished folder to its step's name, durably. A folder that has the name is removed if it
/// proves invalid, else set aside, whatever kept the run from going on from it. Throws Error{environment}; then no
/// finished folder has the name.
void commit_folder(const std::filesystem::path& finished, const std::filesystem::path& run, std::int64_t step);

/// Points `latest` at a step's folder. Throws Error{environment}.
void point_latest(const std::filesystem::path& run, std::int64_t step);
/// The folder's name in `latest`; empty if there is none.
std::string latest_step(const std::filesystem::path& run);

/// Removes a checkpoint's folder, whole or not at all. Throws Error{environment}.
void remove_checkpoint(const std::filesystem::path& folder);

/// Removes temporary folders and trash of crashed saves and retirements. No save may be under way.
void remove_leftovers(const std::filesystem::path& run);

/// Removes checkpoints of a run up to step `newest`. It keeps the last `keep_last` valid ones, multiples of
/// `keep_every` (0: none) and the first of `best` that has a valid one. Later steps are neither counted nor removed:
/// they proved invalid or are about to be set aside. A step that cannot be read now does not count as valid, and is not
/// removed for that.
struct Retention {
  std::int64_t keep_last = 2, keep_every = 0;
  std::int64_t newest = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> best = {};  ///< the best first
};
/// Throws Error{environment} if some cannot be removed, after it has tried all.
void retire(const std::filesystem::path& run, const Retention& retention);

}  // namespace tessera
