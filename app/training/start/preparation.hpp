#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/training/loop/batches.hpp"
#include "core/comm/mpi.hpp"
#include "core/data/windows.hpp"
#include "core/plan/plan.hpp"
#include "core/step/self_check.hpp"
#include "io/data/corpus.hpp"
#include "io/deck/deck.hpp"
#include "io/text/tokenizer.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

/// Reads and checks a deck by itself, for one rank on this machine. Throws Error{deck} with all problems. Local.
Deck checked_deck(const std::string& path, const std::vector<Override>& overrides);

/// A corpus and the windows into which it is cut.
struct CutCorpus {
  std::string name;  ///< its pattern or its set's name, if it is one of several; else empty
  Corpus corpus;
  Windows windows;
};

/// Deck, plan and corpora of a run, checked, before memory is allocated.
struct Prepared {
  Deck deck;
  std::size_t segment = 0;      ///< of precision.schedule that is planned
  std::optional<RunPlan> plan;  ///< its config is that of the segment; the deck's is that of the run
  std::optional<RunPlan> largest;  ///< on rank 0: of the rank that needs most memory, if that is another
  std::vector<CutCorpus> corpora;              ///< of data.files: one, or with data.mixture one for each pattern
  std::vector<CutCorpus> held;                 ///< of data.eval_files, if there are, then of each of data.eval_sets
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of data.tokenizer; null without one

  /// The plan in logs and reports, that of the rank that needs most memory. Elsewhere than on rank 0 the rank's own.
  const RunPlan& told_plan() const { return largest ? *largest : *plan; }
  /// Hash, files and tokens of all training corpora. The hash is that of a single corpus, or combines those of several
  /// in their order.
  std::uint64_t corpus_hash() const;
  std::int64_t files() const;
  std::int64_t tokens() const;
  /// This rank's batches for training and evaluation.
  Batches batches() const;
  /// The corpora whose windows are evaluated, in the order of evaluation_names(); fewer if some could not be read.
  std::vector<const CutCorpus*> evaluated() const;
  /// The encoding of prompts and samples as text. Valid as long as this object.
  const TextEncoding& encoding() const;
  int gpu = -1;                      ///< own_gpu()
  std::filesystem::path made_with;   ///< the tokenizer.json beside the token files; empty if there is none
  std::vector<std::string> told;     ///< of what the run begins from, a line each
  std::int64_t most_evaluated = 0;   ///< windows that an evaluation takes at most, on any number of ranks
  std::vector<std::string> mixed;  ///< in what the ranks' hosts differ, if proof.mixed_hosts allows it, a line each
  CheckedKinds units = {};  ///< kinds of native products that this start has checked (settle_units())
  std::string trained_copy;  ///< says which evaluation file is, or equals, which training file; empty if none does
};

/// Settles parallel.sharding_group host and proof.expert_rows auto, which a run settles on its machines, for a plan of
/// `ranks` ranks on `hosts` equal hosts. In a build for GPUs, those of a host reach each other. Local.
void settle_for(RunConfig& config, int ranks, int hosts);

/// Prepares without a launch (validate, plan). Throws at once all problems with a run on `ranks` ranks that one process
/// can find; memory is checked for one rank alone on this machine. Writes no files. Local.
Prepared examine(const std::string& deck, const std::vector<Override>& overrides, int ranks);

/// Plans another segment of the run, or the same one anew. Collective over the world.
void plan_segment(Prepared& run, std::size_t segment, const Mpi& mpi, Control& control);

/// Cuts the corpora anew, by what the deck says now. Adds problems like prepare(). Local.
void cut_again(Prepared& run, Problems& problems);

/// Texts of data.mixture: for each corpus its share in percent, then its pattern.
std::vector<std::string> mixture_texts(const DataConfig& data);

/// Files, tokens, windows and epochs of a run, as one line.
std::string corpus_text(const Prepared& run);

/// Text of how many epochs of each corpus `samples` samples are.
std::string epochs_text(const Prepared& run, std::int64_t samples);

/// Adds problems if the files of debug.trace, debug.profile and routing.record cannot be written, or are there and of
/// another kind.
/// Leaves none. Local.
void check_debug_files(const RunConfig& config, Problems& problems);

/// training: ranks * micro must divide the global batch. evaluation: any number of ranks evaluates the same windows.
enum class Task { training, evaluation };

/// Reads deck and corpora and resolves the plan. Throws the problems of any rank on all ranks, as many at once as can
/// be found. Collective over the world.
Prepared prepare(const std::string& deck, const std::vector<Override>& overrides, Task task, const Mpi& mpi,
                 Control& control);

/// The same for an evaluation of what is no corpus of the deck: reads none. Collective over the world.
Prepared prepare_without_corpus(Deck deck, const Mpi& mpi, Control& control);

}  // namespace tessera
