#include "core/data/cut_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/loss/loss.hpp"

namespace tessera {
namespace {

/// A drawn corpus with marks, and what a reader of single tokens makes of it.
struct Drawn {
  explicit Drawn(unsigned seed) {
    std::mt19937 draw(seed);
    const auto below = [&](unsigned n) { return static_cast<std::int64_t>(draw() % n); };
    length = 1 + below(20);
    const std::int64_t count = 3 * length + 4 + below(200);
    const unsigned answers = 1 + draw() % 4;
    for (std::int64_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<std::uint16_t>(below(7)));
      marks.push_back(static_cast<std::uint8_t>((draw() % answers == 0 ? mark_answer : 0) |
                                                (draw() % 5 == 0 ? mark_begins : 0)));
      if (draw() % 6 == 0) ends.push_back(i);
    }
    tokens.append(std::span<const std::uint16_t>(ids));
    marked.append(std::span<const std::uint8_t>(marks));
    Problems problems;
    windows = draw() % 2 == 0 ? Windows::apart(count, length, 0.3, seed, problems) : Windows::whole(count, length);
    problems.raise();
  }
  template <class Begins>
  void expect_positions(const CutTokens& cut, const Begins& begins) const {
    const auto n = static_cast<std::size_t>(length);
    std::vector<std::int32_t> read(n), targets(n), positions(n, -7);
    for (std::int64_t w = 0; w < windows.count(); ++w) {
      const std::int64_t counted = read_window(cut, w, read, targets, positions);
      EXPECT_EQ(counted, windows.targets(w));
      std::int32_t place = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(counted); ++i) {
        const std::int64_t token = windows.first_token(w) + static_cast<std::int64_t>(i);
        if (begins(static_cast<std::size_t>(token))) place = 0;
        ASSERT_EQ(positions[i], place++) << "window " << w << ", token " << i;
      }
      for (auto i = static_cast<std::size_t>(counted); i < n; ++i) EXPECT_EQ(positions[i], 0);
    }
  }

  std::int64_t length;
  std::vector<std::uint16_t> ids;
  std::vector<std::uint8_t> marks;
  std::vector<std::int64_t> ends;
  TokenStream tokens, marked;
  Windows windows;
};

TEST(CutTokens, AnswersAloneAreTargets) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Drawn drawn(seed);
    const CutTokens cut{drawn.tokens, drawn.windows, &drawn.marked, {}};
    const auto n = static_cast<std::size_t>(drawn.length);
    std::vector<std::int32_t> ids(n), targets(n), plain_ids(n), plain(n);
    const std::vector<std::int32_t> counts = targets_by_window(cut);
    ASSERT_EQ(std::ssize(counts), drawn.windows.count());
    std::int64_t all = 0;
    for (std::int64_t w = 0; w < drawn.windows.count(); ++w) {
      const std::int64_t counted = read_window(cut, w, ids, targets, {});
      read_window(drawn.tokens, drawn.windows, w, plain_ids, plain);
      EXPECT_EQ(ids, plain_ids);
      std::int64_t answers = 0;
      for (std::int64_t i = 0; i < drawn.windows.targets(w); ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::uint8_t mark = drawn.marks[static_cast<std::size_t>(drawn.windows.first_token(w) + 1 + i)];
        const bool answer = (mark & mark_answer) != 0;
        ASSERT_EQ(targets[at], answer ? plain[at] : no_target);
        answers += answer;
      }
      EXPECT_EQ(counted, answers);
      EXPECT_EQ(counts[static_cast<std::size_t>(w)], answers);
      all += answers;
    }
    EXPECT_EQ(count_targets(cut, 0, drawn.windows.count()), all);
    const CutTokens whole{drawn.tokens, drawn.windows, nullptr, {}};
    EXPECT_TRUE(targets_by_window(whole).empty());
    EXPECT_EQ(count_targets(whole, 0, 2), drawn.windows.targets(0) + drawn.windows.targets(1));
  }
}

TEST(CutTokens, PositionsBeginWithEachDocument) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Drawn drawn(seed);
    CutTokens cut{drawn.tokens, drawn.windows, nullptr, {.apart = true, .marks = &drawn.marked, .separator = 3}};
    drawn.expect_positions(cut, [&](std::size_t i) { return (drawn.marks[i] & mark_begins) != 0; });
    cut.documents.marks = nullptr;
    drawn.expect_positions(cut, [&](std::size_t i) { return drawn.ids[i] == 3; });
    cut.documents.separator = -1;
    cut.documents.ends = drawn.ends;
    drawn.expect_positions(cut, [&](std::size_t i) {
      return std::ranges::find(drawn.ends, static_cast<std::int64_t>(i)) != drawn.ends.end();
    });
  }
}

}  // namespace
}  // namespace tessera
