#pragma once
#include <cstdint>
#include <string>

#include "app/training/start/given_weights.hpp"
#include "app/training/start/preparation.hpp"

namespace tessera {

/// What an evaluation of a run takes, of what is kept for it.
struct Evaluated {
  std::int64_t windows = 0, kept = 0;
  std::int64_t tokens = 0;               ///< that it predicts: all, or answers
  bool answers = false;
  std::int64_t files = 0, of_files = 0;  ///< that its windows lie in, of the corpus that they are of
  double drawn_files = 0;                ///< files that as many drawn windows of that corpus lie in on average
};
Evaluated evaluated_by(const Prepared& run);

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
