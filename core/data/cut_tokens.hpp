#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/data/token_stream.hpp"
#include "core/data/windows.hpp"

namespace tessera {

/// What a corpus's marks, one byte a token, say of a token; several at once.
enum Mark : std::uint8_t {
  mark_answer = 1,  ///< it is a target: a model learns to predict it
  mark_begins = 2,  ///< a document begins with it
};

/// Where the documents of a corpus begin: where its marks say so, else at each `separator` and behind each of `ends`.
struct DocumentStarts {
  bool apart = false;  ///< whether documents are told apart at all
  const TokenStream* marks = nullptr;
  std::int32_t separator = -1;              ///< no token's id: none begins one
  std::span<const std::int64_t> ends = {};  ///< ascending positions of tokens
};

/// Tokens, the windows into which they are cut, and how these are read. Owns none of what it points to.
struct CutTokens {
  const TokenStream& tokens;
  Windows windows;
  const TokenStream* answers = nullptr;  ///< marks, of which those with mark_answer are targets; null: all tokens are
  DocumentStarts documents = {};
};

/// Reads window number `window` like read_window(), with no_target for tokens that are no answer. Where documents are
/// apart, it also reads each token's position in the part of its document that lies in the window. Each span that it
/// fills has `length` elements; positions are 0 where the window has no token. Returns the number of targets. Local.
std::int64_t read_window(const CutTokens& from, std::int64_t window, std::span<std::int32_t> ids,
                         std::span<std::int32_t> targets, std::span<std::int32_t> positions);

/// Targets of `count` windows, from number `first` on. Reads their marks. Local.
std::int64_t count_targets(const CutTokens& from, std::int64_t first, std::int64_t count);

/// Targets of each of the corpus's windows. Reads all marks; empty without answers, where windows say it. Local.
std::vector<std::int32_t> targets_by_window(const CutTokens& from);

}  // namespace tessera
