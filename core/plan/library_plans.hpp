#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "kernels/base/choices.hpp"

namespace tessera {

/// The algorithms that libraries use for the work of a run, on every rank. Chosen once and stored with the run and its
/// checkpoints, so that a library's heuristics cannot change the bits of a resumed run.
struct LibraryPlans {
  std::string made_for;  ///< libraries and GPU, on one line; the choices are invalid with others
  LibraryChoices choices;

  bool operator==(const LibraryPlans& other) const {
    return made_for == other.made_for && choices.of == other.choices.of;
  }
};

/// Text of plans: a line `made_for`, then a line for each piece of work: work and choice in hex digits. Empty without
/// work.
std::string to_text(const LibraryPlans& plans);
/// Parses such a text; empty if it has another form.
std::optional<LibraryPlans> parse_library_plans(const std::string& text);

/// Returns a library's choice for a piece of work: `preferred` if the library accepts it, else the library's own, or
/// empty if it has none.
using Chooser = std::function<LibraryChoices::Words(const LibraryChoices::Words& work,
                                                    const LibraryChoices::Words& preferred)>;

struct AgreedPlans {
  LibraryPlans plans;
  std::int64_t kept = 0;    ///< choices taken from the stored ones
  std::int64_t chosen = 0;  ///< choices made anew
  std::string outdated;     ///< made_for of stored choices that could not be used; "?" if unreadable; else empty
};

/// Agrees on a choice for each piece of `work`: rank 0 decides by its arguments, all ranks get the same. A stored
/// choice (`stored`: text of plans, or empty) is kept if it was made for the same `made_for` and the library still
/// accepts it. What `choose` throws on rank 0, all ranks throw. Collective over the world.
AgreedPlans agree_on_plans(Control& control, const std::vector<LibraryChoices::Words>& work,
                           const std::string& made_for, const std::string& stored, const Chooser& choose);

}  // namespace tessera
