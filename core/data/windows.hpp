#pragma once
#include <cstdint>
#include <span>

#include "core/data/token_stream.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// A corpus cut into windows: window w is tokens [w length, (w + 1) length), its targets the same shifted by one. The
/// first `train` windows are for training, the last `evaluation` ones for evaluation.
struct Windows {
  std::int64_t length = 0;
  std::int64_t train = 0;
  std::int64_t evaluation = 0;

  /// Cuts a corpus of `tokens` tokens into (tokens - 1) / length windows, of which the last
  /// max(1, floor(eval_fraction windows)) are for evaluation if eval_fraction > 0. A text too short for one training
  /// window is a problem (Exit::file).
  static Windows split(std::int64_t tokens, std::int64_t length, double eval_fraction, Problems& problems);
  /// The same with all windows for evaluation. A text too short for one window is a problem (Exit::file).
  static Windows held(std::int64_t tokens, std::int64_t length, Problems& problems);
  std::int64_t count() const { return train + evaluation; }
};

/// Reads window number `window`: `length` ids and `length` targets, i32.
void read_window(const TokenStream& tokens, const Windows& windows, std::int64_t window, std::span<std::int32_t> ids,
                 std::span<std::int32_t> targets);

}  // namespace tessera
