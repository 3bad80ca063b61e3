#pragma once
#include <string>
#include <vector>

#include "app/verbs/verbs.hpp"
#include "core/comm/control.hpp"
#include "io/checkpoint/folder.hpp"

namespace tessera {

/// Checkpoints of a run whose steps one deck has made, ascending. An audit begins with the first and compares the
/// others, which hold the deck. The first may be step 0 without a folder: weights that the seed draws.
struct AuditedPart {
  std::vector<StepFolder> checkpoints;
  std::string changed;  ///< what its deck changed of the part before, as "optimizer.lr 0.002 -> 0.001; ..."
};

/// The steps of an audit, divided where the run changed: each part is made again as it was made. Throws on all ranks
/// Error{file} for a path or steps that are not there. A change at a step that no checkpoint holds, of the deck or by
/// precision.schedule, is an Error{usage} that says which steps can be audited. Collective over the world.
std::vector<AuditedPart> audited_parts(const AuditOptions& options, Control& control);

}  // namespace tessera
