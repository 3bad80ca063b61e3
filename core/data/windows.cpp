#include "core/data/windows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace tessera {
namespace {

std::string counted(std::int64_t tokens) { return fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s"); }

}  // namespace

Windows Windows::split(std::int64_t tokens, std::int64_t length, double eval_fraction, Problems& problems) {
  require(length > 0 && eval_fraction >= 0 && eval_fraction < 1, "Windows::split",
          "length > 0, eval_fraction in [0, 1)");
  const std::int64_t all = tokens > 0 ? (tokens - 1) / length : 0;
  const auto share = static_cast<std::int64_t>(std::floor(eval_fraction * static_cast<double>(all)));
  const std::int64_t evaluation = eval_fraction > 0 ? std::max<std::int64_t>(1, share) : 0;
  if (all <= evaluation) {
    const std::int64_t needed = (evaluation + 1) * length + 1;
    problems.add(Exit::file,
                 fmt::format("the corpus has {}, but model.seq_len {} needs at least {} (one window for "
                             "training{}, and one token more): shorten model.seq_len or add files to data.files",
                             counted(tokens), length, needed, evaluation > 0 ? ", one for evaluation" : ""));
    return {length, 0, 0};
  }
  return {length, all - evaluation, evaluation};
}

Windows Windows::held(std::int64_t tokens, std::int64_t length, Problems& problems) {
  const std::int64_t all = tokens > 0 ? (tokens - 1) / length : 0;
  if (all == 0)
    problems.add(Exit::file, fmt::format("the corpus of data.eval_files has {}, but model.seq_len {} needs at "
                                         "least {} (one window, and one token more)",
                                         counted(tokens), length, length + 1));
  return {length, 0, all};
}

void read_window(const TokenStream& tokens, const Windows& windows, std::int64_t window, std::span<std::int32_t> ids,
                 std::span<std::int32_t> targets) {
  const auto length = static_cast<std::size_t>(windows.length);
  require(window >= 0 && window < windows.count(), "read_window", "the corpus has no such window");
  require(ids.size() == length && targets.size() == length, "read_window", "ids and targets hold one window each");
  tokens.read(window * windows.length, ids);
  std::copy(ids.begin() + 1, ids.end(), targets.begin());
  tokens.read((window + 1) * windows.length, targets.last(1));
}

}  // namespace tessera
