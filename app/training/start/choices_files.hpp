#pragma once
#include "app/training/loop/training.hpp"
#include "app/training/start/preparation.hpp"
#include "app/training/start/run_request.hpp"
#include "core/comm/control.hpp"

namespace tessera {

/// How far a run is: steps done, and the number of the next sample.
struct RunPosition {
  std::int64_t step = 0, next_sample = 0;
};

/// Adds problems with the files of routing.record and routing.replay, for a run that goes on at `position`. Neither is
/// changed. Local.
void check_choices_files(const Prepared& run, const RunRequest& request, const RunPosition& position,
                         Problems& problems);

/// Opens these files for the run as it stands. Of a record that is there, steps that it makes again are dropped.
/// Throws the problems of check_choices_files() on all ranks, since the run may have been restored from an older
/// checkpoint than the one checked first. Collective over the world.
void open_choices_files(const Prepared& run, const RunRequest& request, Training& training, Control& control);

}  // namespace tessera
