#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/training/start/given_weights.hpp"
#include "core/comm/control.hpp"
#include "core/data/windows.hpp"
#include "io/deck/deck.hpp"
#include "io/text/encoding.hpp"

namespace tessera {

/// A text as tokens, every one of which but the first a model is to predict. Move-only.
struct MeasuredText {
  std::vector<std::uint32_t> ids;
  TokenStream tokens;   ///< of `ids`
  Windows windows;      ///< of the model's seq_len, the last one shorter
  std::int64_t bytes = 0;  ///< of the text, but those of its first token

  MeasuredText() = default;
  MeasuredText(MeasuredText&&) = default;
  MeasuredText& operator=(MeasuredText&&) = default;
};

/// Reads the file of `tessera eval --text`, or with "-" standard input, on rank 0, for all ranks. Throws on all ranks
/// Error{file} for what is no UTF-8 text. Collective over the world.
std::string text_to_measure(const std::string& path, Control& control);

/// Encodes a text for sequences of `length` tokens. Throws Error{file} if it has no second token. Local.
MeasuredText measured(const std::string& path, const std::string& text, const TextEncoding& encoding,
                      std::int64_t length);

/// The deck by which weights predict a text: their model, number formats and sharding, with `overrides`. All else that
/// their run was told is left out. Throws Error{deck} for overrides that no text's loss depends on. Local.
Deck deck_to_measure(const GivenWeights& given, const std::vector<Override>& overrides);

}  // namespace tessera
