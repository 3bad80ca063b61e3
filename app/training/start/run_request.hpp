#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "io/deck/deck.hpp"

namespace tessera {

/// `train --resume`. auto: the newest valid checkpoint of the run directory, if there is any; none: a fresh start; a
/// path: that checkpoint.
struct Resume {
  std::string from = "auto";  ///< auto, none, or a path

  bool at_path() const { return from != "auto" && from != "none"; }
};

/// A training run as requested on the command line.
struct RunRequest {
  std::string deck;
  std::vector<Override> overrides;
  Resume resume;
  std::set<std::string> changes;          ///< keys of --allow-change, which a resumed run may change
  std::int64_t stop_at = -1;              ///< the step after which the run saves and ends; -1: none
  std::vector<std::string> command_line;  ///< as typed
};

}  // namespace tessera
