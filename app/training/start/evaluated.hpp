#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/training/start/given_weights.hpp"
#include "app/training/start/preparation.hpp"

namespace tessera {

/// What an evaluation of a set takes, of what is kept for it.
struct Evaluated {
  std::string name;  ///< the set's; empty if it is the only one of the run and has none
  std::int64_t windows = 0, kept = 0;
  std::int64_t tokens = 0;               ///< that it predicts: all, or answers
  bool answers = false;
  std::int64_t files = 0, of_files = 0;  ///< that its windows lie in, of the corpus that they are of
  double drawn_files = 0;                ///< files that as many drawn windows of that corpus lie in on average
};
/// Those of the run's evaluation sets, in the order of evaluation_names().
std::vector<Evaluated> evaluated_by(const Prepared& run);
/// Bytes of text that the targets of a set's evaluated windows stand for; 0 where nothing says it (token files without
/// data.tokenizer). Reads them.
std::int64_t target_bytes(const Prepared& run, const CutCorpus& set);

/// "128 of 1,050 windows, 8,192 tokens, from 97 of 241 files"; of a single file none is said.
std::string extent_text(const Evaluated& taken);
/// Says that the windows come from few of many files; empty if they do not.
std::string doubt_text(const Evaluated& taken);
/// Both for a log, and whether what is evaluated is trained on; empty without an evaluation.
std::string evaluation_text(const Prepared& run);

/// Where the deck leaves data.eval_windows open, a run that goes on from a checkpoint, or evaluates one, takes the
/// windows that were `saved` with it. Those of today's default may have been trained on. Returns a line that says so,
/// or nothing if all stays.
std::string keep_windows(Prepared& run, const RunConfig& saved);

/// Says that weights may have been trained on what the run evaluates on. They are of a run on the same corpus that kept
/// other windows for evaluation. Empty if they were not, or nothing is known.
std::string overlap_text(const GivenWeights& given, const Prepared& run);

}  // namespace tessera
