#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/training/batches.hpp"
#include "core/comm/mpi.hpp"
#include "core/data/windows.hpp"
#include "core/plan/plan.hpp"
#include "io/data/corpus.hpp"
#include "io/deck/deck.hpp"
#include "io/text/tokenizer.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

/// A deck that is sound by itself, for one rank on this machine. Throws Error{deck} with all that is wrong with it.
Deck sound_deck(const std::string& path, const std::vector<Override>& overrides);

/// What a deck asks for, on these ranks, before memory is allocated.
struct Prepared {
  Deck deck;
  std::optional<RunPlan> plan;
  std::optional<Corpus> corpus;
  Windows windows;
  std::optional<Corpus> held;                   ///< of data.eval_files, where there are any
  Windows held_windows;                         ///< its windows
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of data.tokenizer; null without one

  /// What is learned from and evaluated on, of a rank.
  Batches batches() const;
  /// How prompts and samples are text. Valid as long as this.
  const TextEncoding& encoding() const;
  int gpu = -1;  ///< as own_gpu says
};

/// The same without a launch: throws what one process can tell of what stands against the run on `ranks` ranks, all of
/// it at once, with the machine's memory for one rank alone. Makes nothing. Local.
Prepared examine(const std::string& deck, const std::vector<Override>& overrides, int ranks);

/// Files, tokens, windows and epochs of a run, on one line.
std::string corpus_text(const Prepared& run);

/// training: batches must share out evenly; evaluation: any number of ranks, the same windows.
enum class Task { training, evaluation };

/// Reads deck and corpus and resolves the plan. Whatever stands against the run on any rank is thrown on all, as much
/// of it at once as can be told. Collective.
Prepared prepare(const std::string& deck, const std::vector<Override>& overrides, Task task, const Mpi& mpi,
                 Control& control);

}  // namespace tessera
