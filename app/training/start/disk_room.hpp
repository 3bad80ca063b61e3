#pragma once
#include <cstdint>
#include <filesystem>

#include "core/plan/plan.hpp"

namespace tessera {

/// What the disk of the run directory has no room for (io/checkpoint/room.hpp). The run goes on from the checkpoint
/// `from` (empty: it begins) and ends after step `stop_at` (-1: the deck's last). For rank 0, before memory is
/// allocated. Throws Error{environment} or Error{file} if a checkpoint cannot be read. Local.
Problems problems_with_room(const RunPlan& plan, const std::filesystem::path& from, std::int64_t stop_at);

}  // namespace tessera
