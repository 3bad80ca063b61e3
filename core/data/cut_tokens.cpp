#include "core/data/cut_tokens.hpp"

#include <algorithm>

#include "kernels/loss/loss.hpp"

namespace tessera {
namespace {

/// Counts the tokens of documents from 0, the window's first one too.
void fill_positions(const DocumentStarts& documents, std::int64_t first, std::span<const std::int32_t> ids,
                    std::span<std::int32_t> positions) {
  std::vector<std::int32_t> marks(documents.marks ? ids.size() : 0);
  if (documents.marks) documents.marks->read(first, marks);
  auto end = std::ranges::upper_bound(documents.ends, first);
  std::int32_t position = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool behind_end = end != documents.ends.end() && *end == first + static_cast<std::int64_t>(i);
    if (behind_end) ++end;
    const bool begins = documents.marks ? (marks[i] & mark_begins) != 0 : ids[i] == documents.separator || behind_end;
    if (begins) position = 0;
    positions[i] = position++;
  }
}

}  // namespace

std::int64_t read_window(const CutTokens& from, std::int64_t window, std::span<std::int32_t> ids,
                         std::span<std::int32_t> targets, std::span<std::int32_t> positions) {
  read_window(from.tokens, from.windows, window, ids, targets);
  const std::int64_t first = from.windows.first_token(window);
  std::int64_t counted = from.windows.targets(window);
  const auto real = static_cast<std::size_t>(counted);
  if (from.documents.apart) {
    fill_positions(from.documents, first, ids.first(real), positions.first(real));
    std::ranges::fill(positions.subspan(real), 0);
  }
  if (!from.answers) return counted;
  std::vector<std::int32_t> marks(real);
  from.answers->read(first + 1, marks);
  for (std::size_t i = 0; i < real; ++i)
    if ((marks[i] & mark_answer) == 0) {
      targets[i] = no_target;
      --counted;
    }
  return counted;
}

std::int64_t count_targets(const CutTokens& from, std::int64_t first, std::int64_t count) {
  std::int64_t targets = 0;
  std::vector<std::int32_t> marks;
  for (std::int64_t window = first; window < first + count; ++window) {
    const std::int64_t all = from.windows.targets(window);
    marks.resize(static_cast<std::size_t>(from.answers ? all : 0));
    if (from.answers) from.answers->read(from.windows.first_token(window) + 1, marks);
    const auto answers = std::ranges::count_if(marks, [](std::int32_t mark) { return (mark & mark_answer) != 0; });
    targets += from.answers ? answers : all;
  }
  return targets;
}

std::vector<std::int32_t> targets_by_window(const CutTokens& from) {
  std::vector<std::int32_t> counts;
  if (from.answers)
    for (std::int64_t window = 0; window < from.windows.count(); ++window)
      counts.push_back(static_cast<std::int32_t>(count_targets(from, window, 1)));
  return counts;
}

}  // namespace tessera
