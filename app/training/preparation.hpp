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

/// A corpus and how it is cut.
struct CutCorpus {
  std::string name;  ///< its pattern, where it is one of several
  Corpus corpus;
  Windows windows;
};

/// What a deck asks for, on these ranks, before memory is allocated.
struct Prepared {
  Deck deck;
  std::optional<RunPlan> plan;
  std::vector<CutCorpus> corpora;              ///< of data.files: one, or one of each pattern under data.mixture
  std::optional<CutCorpus> held;               ///< of data.eval_files, where there are any
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of data.tokenizer; null without one

  /// Hash, files and tokens of all training corpora. The hash is the sole corpus's, or made of several in their order.
  std::uint64_t corpus_hash() const;
  std::int64_t files() const;
  std::int64_t tokens() const;
  /// This rank's batches for training and evaluation.
  Batches batches() const;
  /// How prompts and samples are text. Valid as long as this.
  const TextEncoding& encoding() const;
  int gpu = -1;  ///< as own_gpu says
};

/// The same without a launch (validate, plan): throws all problems with the run on `ranks` ranks that one process can
/// find, all at once, with this machine's memory for one rank alone. Makes nothing. Local.
Prepared examine(const std::string& deck, const std::vector<Override>& overrides, int ranks);

/// Of data.mixture: for each corpus its share in percent, then its pattern.
std::vector<std::string> mixture_texts(const DataConfig& data);

/// Files, tokens, windows and epochs of a run, on one line.
std::string corpus_text(const Prepared& run);

/// How many epochs of each corpus so many samples are.
std::string epochs_text(const Prepared& run, std::int64_t samples);

/// training: batches must share out evenly; evaluation: any number of ranks, the same windows.
enum class Task { training, evaluation };

/// Reads deck and corpus and resolves the plan. Problems of any rank are thrown on all, as many at once as can be
/// found. Collective.
Prepared prepare(const std::string& deck, const std::vector<Override>& overrides, Task task, const Mpi& mpi,
                 Control& control);

}  // namespace tessera
