#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/state/state_dict.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// Throws Error{environment} if the disk of `folder` has no room for a checkpoint of these tensors: "`what` needs ...".
void refuse_if_too_big(const std::filesystem::path& folder, std::span<const StateTensor> tensors,
                       const std::string& what);

/// The saves of a run that begins, and what of them is kept.
struct PlannedSaves {
  std::filesystem::path run;       ///< its directory; need not be there yet
  std::int64_t kept = -1;          ///< the newest step there from which the run goes on; -1: none
  std::int64_t step = 0;           ///< steps done
  std::int64_t last = 0;           ///< the step of the last save: the run's end, or --stop-at
  std::int64_t every = 0;          ///< steps from save to save; 0: the last alone
  std::int64_t keep_last = 2, keep_every = 0;
  std::int64_t beside = 0;         ///< bytes in a checkpoint's folder beside the tensors: quantized.h5
};

/// What the disk has no room for, of checkpoints of these tensors, counting that retention removes older ones only
/// after a newer one is whole. Asked of the next, or of as many as checkpoint.keep_last keeps beside the one that is
/// written. Those that checkpoint.keep_every collects are a warning on stderr, since they may be moved away meanwhile.
/// A quota that the file system does not tell is met only by writing. Local.
Problems problems_with_room(const PlannedSaves& saves, std::span<const StateTensor> tensors);

}  // namespace tessera
