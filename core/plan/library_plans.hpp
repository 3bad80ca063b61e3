#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "kernels/base/choices.hpp"

namespace tessera {

/// What libraries use for the work of a run, on every rank: chosen once, stored with the run and its checkpoints, so
/// that no choice of theirs changes the bits of a resumed run.
struct LibraryPlans {
  std::string made_for;  ///< libraries and GPU, on one line; on others the choices mean nothing
  LibraryChoices choices;

  bool operator==(const LibraryPlans& other) const {
    return made_for == other.made_for && choices.of == other.choices.of;
  }
};

/// A line `made_for`, then one a piece of work: it and its choice in hex digits. Empty without work.
std::string to_text(const LibraryPlans& plans);
/// Parses it; empty if the text has another form.
std::optional<LibraryPlans> parse_library_plans(const std::string& text);

/// A back end's choice for a piece of work: `preferred` if the library accepts it, else its own, or nothing.
using Chooser = std::function<LibraryChoices::Words(const LibraryChoices::Words& work,
                                                    const LibraryChoices::Words& preferred)>;

struct AgreedPlans {
  LibraryPlans plans;
  std::int64_t kept = 0;    ///< choices taken from the stored ones
  std::int64_t chosen = 0;  ///< choices made anew
  std::string outdated;     ///< what the stored ones were made for, where they could not be used; "?" if unreadable
};

/// A choice for each piece of `work`, made by rank 0 and the same on all: the stored one (`stored`: text of plans, or
/// empty) where it was made for the same and the library still accepts it. Rank 0's arguments alone count. Collective;
/// what `choose` throws there, all ranks throw.
AgreedPlans agree_on_plans(Control& control, const std::vector<LibraryChoices::Words>& work,
                           const std::string& made_for, const std::string& stored, const Chooser& choose);

}  // namespace tessera
