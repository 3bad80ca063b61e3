#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A branch of a run: the run goes on from another checkpoint than the newest of its directory. At the branch's first
/// commit the steps of the old line are renamed (abandoned_name); from then on they are used only by their path. Before
/// that they are the run's. branch.json, written first and removed last, lists what the branch keeps and leaves behind,
/// so that settle_branch() can finish or undo the branch wherever a run ended. All functions: Local, for rank 0 under
/// the run's lock; they throw Error{environment}.

/// Begins a branch if `run` has steps later than `kept`, and returns the names of these; none: no branch is needed.
/// `parent` is the checkpoint to go on from, `kept` the last step that leads to it (-1: none does, since it is in
/// another directory or was set aside). Copies each of `records`, files of rows by step in `run`, aside, because the
/// branch drops and adds rows; a new record begins with the rows that lead to `parent`.
std::vector<std::string> begin_branch(const std::filesystem::path& run, const std::filesystem::path& parent,
                                      std::int64_t kept, const std::vector<std::string>& records);

/// Frees the name `step` for a new checkpoint: a folder of this name that the branch leaves behind is set aside.
void make_way(const std::filesystem::path& run, std::string_view step);

/// Sets a step aside that no branch leaves behind, under the number of a branch of its own, and says so on stderr.
void set_aside(const std::filesystem::path& run, const std::string& step);

/// Called after a commit and at the start of a run. If the branch has committed a checkpoint, sets aside what it leaves
/// behind and reports that; otherwise restores everything as it was before the branch began.
void settle_branch(const std::filesystem::path& run);

}  // namespace tessera
