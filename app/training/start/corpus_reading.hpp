#pragma once
#include "app/training/start/preparation.hpp"
#include "core/data/cut_tokens.hpp"

namespace tessera {

/// Which marks beside token files the deck's keys take.
WithMarks marks_wanted(const DataConfig& data);

/// How the run reads one of its corpora: targets and documents. Valid as long as both. Local.
CutTokens cut_tokens(const Prepared& run, const CutCorpus& one);

/// Adds a problem for a corpus that says nowhere where its documents begin, if they are to be told apart. Local.
void require_documents(const Prepared& run, const CutCorpus& one, Problems& problems);

/// Adds a problem for each corpus with nothing to learn, or to evaluate, since none of its tokens is an answer. Local.
void require_answers(const Prepared& run, Problems& problems);

}  // namespace tessera
