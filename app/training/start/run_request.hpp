#pragma once
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "io/deck/deck.hpp"

namespace tessera {

/// From what a run begins.
struct FromNewest {};  ///< the newest valid checkpoint of its run directory; a fresh start if there is none
struct FromNothing {};  ///< a fresh start
struct FromCheckpoint {
  std::filesystem::path path;  ///< of a step folder, or of a run directory: its newest valid step
};
using Resume = std::variant<FromNewest, FromNothing, FromCheckpoint>;

/// What `--resume TEXT` asks for: auto, none, or a path. Pure.
inline Resume resume_of(const std::string& text) {
  if (text == "auto") return FromNewest{};
  if (text == "none") return FromNothing{};
  return FromCheckpoint{text};
}

/// The text of resume_of(). Pure.
inline std::string text_of(const Resume& resume) {
  if (const auto* chosen = std::get_if<FromCheckpoint>(&resume)) return chosen->path.string();
  return std::holds_alternative<FromNothing>(resume) ? "none" : "auto";
}

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
