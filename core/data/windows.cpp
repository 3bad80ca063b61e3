#include "core/data/windows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

#include "kernels/base/index.hpp"
#include "kernels/random/random.hpp"

namespace tessera {
namespace {

std::string counted(std::int64_t tokens) { return fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s"); }

/// How many of `all` windows are for evaluation.
std::int64_t share_of(double eval_fraction, std::int64_t all) {
  require(eval_fraction >= 0 && eval_fraction < 1, "Windows", "an eval_fraction is in [0, 1)");
  const auto share = static_cast<std::int64_t>(std::floor(eval_fraction * static_cast<double>(all)));
  return eval_fraction > 0 ? std::max<std::int64_t>(1, share) : 0;
}

/// Adds the problem of a corpus that has no window to train on.
void refuse_short(std::int64_t tokens, std::int64_t length, std::int64_t needed, bool evaluates, const char* more,
                  Problems& problems) {
  problems.add(Exit::file, fmt::format("the corpus has {}, but model.seq_len {} needs at least {} (one window for "
                                       "training{}, and {}): shorten model.seq_len or add files to data.files",
                                       counted(tokens), length, needed, evaluates ? ", one for evaluation" : "", more));
}

}  // namespace

DrawnPlaces::DrawnPlaces(std::int64_t count, std::int64_t all, std::uint64_t seed) {
  require(0 <= count && count <= all, "DrawnPlaces", "draws at most all windows");
  const RandomKey key = random_key(seed, "evaluation", "", 0);
  std::unordered_map<std::int64_t, std::int64_t> moved;  // windows that are not at their own place any more, by place
  const auto at = [&](std::int64_t place) {
    const auto found = moved.find(place);
    return found == moved.end() ? place : found->second;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    // The bias of the modulo is below windows / 2^64, which no run can observe.
    const std::uint64_t draw = random_bits(key, static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(all - i);
    const std::int64_t from = i + static_cast<std::int64_t>(draw);
    order_.push_back(at(from));
    moved[from] = at(i);
  }
  ascending_ = order_;
  std::ranges::sort(ascending_);
}

// Before the place wanted lie i places that are left and some k drawn ones. The k-th drawn is the first after it, the
// first one with ascending_[k] - k > i.
std::int64_t DrawnPlaces::left(std::int64_t i) const {
  std::int64_t low = 0, high = std::ssize(ascending_);
  while (low < high) {
    const std::int64_t k = (low + high) / 2;
    if (ascending_[static_cast<std::size_t>(k)] - k > i) high = k;
    else low = k + 1;
  }
  return i + low;
}

Windows Windows::split(std::int64_t tokens, std::int64_t length, double eval_fraction, Problems& problems) {
  require(length > 0, "Windows::split", "windows hold a token");
  const std::int64_t all = tokens > 0 ? (tokens - 1) / length : 0, evaluation = share_of(eval_fraction, all);
  if (all > evaluation) return {.length = length, .train = all - evaluation, .evaluation = evaluation};
  refuse_short(tokens, length, (evaluation + 1) * length + 1, evaluation > 0, "one token more", problems);
  return {.length = length};
}

Windows Windows::apart(std::int64_t tokens, std::int64_t length, double eval_fraction, std::uint64_t seed,
                       Problems& problems) {
  require(length > 0 && eval_fraction > 0, "Windows::apart", "windows hold a token, and some are drawn");
  const std::int64_t all = tokens / (length + 1), evaluation = share_of(eval_fraction, all);
  if (all > evaluation)
    return {.length = length,
            .train = all - evaluation,
            .evaluation = evaluation,
            .between = 1,
            .drawn = {evaluation, all, seed}};
  refuse_short(tokens, length, (evaluation + 1) * (length + 1), true, "one token more for each", problems);
  return {.length = length, .between = 1};
}

Windows Windows::held(std::int64_t tokens, std::int64_t length, Problems& problems) {
  const std::int64_t all = tokens > 0 ? (tokens - 1) / length : 0;
  if (all == 0)
    problems.add(Exit::file, fmt::format("the corpus of data.eval_files has {}, but model.seq_len {} needs at "
                                         "least {} (one window, and one token more)",
                                         counted(tokens), length, length + 1));
  return {.length = length, .evaluation = all};
}

Windows Windows::held(std::int64_t tokens, std::int64_t length, std::uint64_t seed, Problems& problems) {
  Windows windows = held(tokens, length, problems);
  windows.drawn = {windows.evaluation, windows.evaluation, seed};
  return windows;
}

Windows Windows::whole(std::int64_t tokens, std::int64_t length) {
  require(tokens >= 2 && length > 0, "Windows::whole", "a token must follow another");
  const std::int64_t targets = tokens - 1, all = ceil_div(targets, length);
  return {.length = length, .evaluation = all, .missing = all * length - targets};
}

std::int64_t Windows::first_token(std::int64_t window) const {
  require(window >= 0 && window < count(), "Windows::first_token", "the corpus has no such window");
  const std::int64_t place = drawn.empty()   ? window
                             : window < train ? drawn.left(window)
                                              : drawn.drawn(window - train);
  return place * stride();
}

void read_window(const TokenStream& tokens, const Windows& windows, std::int64_t window, std::span<std::int32_t> ids,
                 std::span<std::int32_t> targets) {
  const auto length = static_cast<std::size_t>(windows.length);
  const auto real = static_cast<std::size_t>(windows.targets(window));
  const std::int64_t first = windows.first_token(window);
  require(ids.size() == length && targets.size() == length, "read_window", "ids and targets hold one window each");
  tokens.read(first, ids.first(real));
  tokens.read(first + 1, targets.first(real));
  std::ranges::fill(ids.subspan(real), 0);
  std::ranges::fill(targets.subspan(real), 0);
}

}  // namespace tessera
