#pragma once
#include <set>
#include <string>
#include <vector>

#include "io/deck/deck.hpp"

namespace tessera {

/// `train --resume`: the newest valid checkpoint of the run directory if it holds any, a path, or a fresh start.
struct Resume {
  std::string from = "auto";  ///< auto, none, or a path

  bool at_path() const { return from != "auto" && from != "none"; }
};

/// A training run as the command line asks for it.
struct RunRequest {
  std::string deck;
  std::vector<Override> overrides;
  Resume resume;
  std::set<std::string> changes;          ///< keys that a resume may change: of --allow-change
  std::vector<std::string> command_line;  ///< as it was typed
};

}  // namespace tessera
