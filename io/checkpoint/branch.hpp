#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/control.hpp"

namespace tessera {

/// A branch of a run: the run goes on from another checkpoint than the newest of its directory. At the branch's first
/// commit the steps of the old line are renamed (abandoned_name); from then on they are used only by their path. Before
/// that they are the run's. branch.json, written first and removed last, lists what the branch keeps and leaves behind,
/// so that settle_branch() can finish or undo the branch wherever a run ended. All functions but the last: Local, for
/// rank 0 under the run's lock; they throw Error{environment}.

/// Begins a branch if `run` has steps later than `kept`, and returns the names of these; none: no branch is needed.
/// `parent` is the checkpoint to go on from. `kept` is the last step that leads to it (-1: none does, since it is in
/// another directory or was set aside). `records` are files of rows by step in `run`. Those that are there are copied,
/// because the branch drops and adds rows. The new ones begin with the rows that lead to `parent`.
std::vector<std::string> begin_branch(const std::filesystem::path& run, const std::filesystem::path& parent,
                                      std::int64_t kept, const std::vector<std::string>& records);

/// Renames `records` of a run whose checkpoints are all gone, as a branch does, and returns their new names. So it is
/// where `latest` names a step and there is none; `latest` is removed. Else, and where none is there, does nothing.
std::vector<std::string> leave_lost_line(const std::filesystem::path& run, const std::vector<std::string>& records);

/// Frees the name `step` for a new checkpoint: a folder of this name that the branch leaves behind is set aside.
void make_way(const std::filesystem::path& run, std::string_view step);

/// Sets a step aside that no branch leaves behind, under the number of a branch of its own, and says so on stderr.
void set_aside(const std::filesystem::path& run, const std::string& step);

/// Called after a commit and at the start of a run. If the branch has committed a checkpoint, sets aside what it leaves
/// behind and reports that; otherwise restores everything as it was before the branch began.
void settle_branch(const std::filesystem::path& run);

/// The same by all ranks, after a save. If rank 0 fails, all throw the same Error, and the next save or the next start
/// of a run does it instead. Collective over the world.
void settle_branch_after_save(const std::filesystem::path& run, Control& control);

}  // namespace tessera
