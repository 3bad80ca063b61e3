#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A branch of a run: it goes on from another checkpoint than the newest of its directory. Once its first checkpoint is
/// committed, the steps of the old line are set aside under names that say so (abandoned_name), and nothing goes on
/// from them unless told to by their path. Until then they are the run's. branch.json says what a branch under way
/// keeps and leaves behind; it is written first and removed last, so that wherever a run ends, settle_branch() finishes
/// the branch or takes it back. All of this is local, for rank 0 under the run's lock, and throws Error{environment}.

/// Begins a branch where `run` holds steps later than `kept`, up to which they lead to the checkpoint `parent` that the
/// run goes on from (-1: none does, it is another directory's or was set aside before). Returns the names of those that
/// it will leave behind; none: there is no branch. A copy of `record`, a file of rows by step in `run`, is set aside at
/// once, since the branch drops and adds rows; it begins with those that lead to `parent`.
std::vector<std::string> begin_branch(const std::filesystem::path& run, const std::filesystem::path& parent,
                                      std::int64_t kept, const std::string& record);

/// Before a checkpoint takes the name `step`: what has it is set aside where a branch leaves it behind.
void make_way(const std::filesystem::path& run, std::string_view step);

/// After a commit and at the start of a run. Where a checkpoint of the branch has been committed, sets aside what it
/// leaves behind and says so; where none has, everything is again what it was before the branch began.
void settle_branch(const std::filesystem::path& run);

}  // namespace tessera
