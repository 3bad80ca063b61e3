#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/data/token_stream.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// Some of a corpus's windows, drawn by a seed without repetition, each equally likely. Which ones depends on the two
/// counts and the seed alone, and of fewer ones the first are the same.
class DrawnPlaces {
 public:
  DrawnPlaces() = default;
  /// Draws `count` of the windows [0, all): Fisher-Yates with draws of Philox, keyed by (seed, "evaluation").
  DrawnPlaces(std::int64_t count, std::int64_t all, std::uint64_t seed);

  bool empty() const { return order_.empty(); }
  /// Place of the i-th one drawn, and of the i-th one left, in ascending order.
  std::int64_t drawn(std::int64_t i) const { return order_[static_cast<std::size_t>(i)]; }
  std::int64_t left(std::int64_t i) const;

 private:
  std::vector<std::int64_t> order_, ascending_;  // the same places
};

/// A corpus cut into windows: the window at place p is the `length` tokens from token p * stride on, and its targets
/// are the same shifted by one. Windows are numbered, first `train` ones for training, then `evaluation` ones in the
/// order in which an evaluation takes them.
struct Windows {
  std::int64_t length = 0;
  std::int64_t train = 0;
  std::int64_t evaluation = 0;
  std::int64_t between = 0;   ///< tokens that no window reads, between two; 1: no token is in two windows
  std::int64_t missing = 0;   ///< targets that the last window has fewer than `length`
  DrawnPlaces drawn = {};     ///< places of the evaluation windows; empty: after those for training

  /// Cuts a corpus of `tokens` tokens into (tokens - 1) / length windows, of which the last
  /// max(1, floor(eval_fraction windows)) are for evaluation if eval_fraction > 0. The first input of these is the last
  /// target of training; no token that they predict is seen in training. A text too short for one training window is a
  /// problem (Exit::file).
  static Windows split(std::int64_t tokens, std::int64_t length, double eval_fraction, Problems& problems);
  /// Cuts it into tokens / (length + 1) windows that share no token, and draws as many for evaluation (eval_fraction >
  /// 0). So training sees no token of theirs, not even as a neighbour's last target.
  static Windows apart(std::int64_t tokens, std::int64_t length, double eval_fraction, std::uint64_t seed,
                       Problems& problems);
  /// Cuts it like split() with all windows for evaluation. A text too short for one window is a problem (Exit::file).
  static Windows held(std::int64_t tokens, std::int64_t length, Problems& problems);
  /// The same, and an evaluation takes them in a drawn order.
  static Windows held(std::int64_t tokens, std::int64_t length, std::uint64_t seed, Problems& problems);
  /// All windows for evaluation, the last one as short as it must be: every token but the first is a target once.
  /// `tokens` >= 2.
  static Windows whole(std::int64_t tokens, std::int64_t length);

  std::int64_t count() const { return train + evaluation; }
  std::int64_t stride() const { return length + between; }
  /// First token of a window by its number, and how many targets it has.
  std::int64_t first_token(std::int64_t window) const;
  std::int64_t targets(std::int64_t window) const { return window + 1 == count() ? length - missing : length; }
  /// Targets of the first `windows` evaluation windows.
  std::int64_t evaluation_targets(std::int64_t windows) const {
    return windows * length - (windows == evaluation && windows > 0 ? missing : 0);
  }
};

/// Reads window number `window`: `length` ids and `length` targets, i32; 0 in place of missing ones.
void read_window(const TokenStream& tokens, const Windows& windows, std::int64_t window, std::span<std::int32_t> ids,
                 std::span<std::int32_t> targets);

}  // namespace tessera
