// Library algorithms are chosen once for all ranks. A chooser of the test stands in for a library.
#include "core/plan/library_plans.hpp"

#include <gtest/gtest.h>

#include "tests/support/mpi.hpp"

namespace tessera {
namespace {

using Words = LibraryChoices::Words;

using test::mpi;

const std::vector<Words> work = {{1, 2}, {1, 2, 3}, {7}, {~std::uint64_t{0}, 0}};
constexpr const char* here = "Library 1.2, GPU X";

/// Arguments of `agree_on_plans` on each rank, and how often its chooser was called there.
struct Agreement {
  std::string made_for = here, stored{};
  Words never{};   ///< a choice that the library does not accept
  int asked = 0;

  AgreedPlans made(Control& control) {
    return agree_on_plans(control, work, made_for, stored, [&](const Words& piece, const Words& preferred) {
      ++asked;
      if (!preferred.empty() && preferred != never) return preferred;
      return Words{piece.front() + 100, static_cast<std::uint64_t>(control.rank())};
    });
  }
};

class Plans : public testing::Test {
 protected:
  void expect_the_same_everywhere(const AgreedPlans& agreed) {
    for (const std::string& text : control->gather(to_text(agreed.plans))) EXPECT_EQ(text, to_text(agreed.plans));
  }
  std::unique_ptr<Control> control = mpi().control(std::chrono::seconds(300));
};

TEST_F(Plans, AreChosenOnRankZeroAlone) {
  Agreement first;
  const AgreedPlans agreed = first.made(*control);
  EXPECT_EQ(first.asked, control->rank() == 0 ? 4 : 0);
  ASSERT_EQ(agreed.plans.choices.of.size(), work.size());
  for (const Words& piece : work) EXPECT_EQ(agreed.plans.choices.of.at(piece), (Words{piece.front() + 100, 0}));
  EXPECT_EQ(agreed.plans.made_for, here);
  expect_the_same_everywhere(agreed);
  if (control->rank() == 0) {
    EXPECT_EQ(agreed.kept, 0);
    EXPECT_EQ(agreed.chosen, 4);
    EXPECT_EQ(agreed.outdated, "");
  }
}

TEST_F(Plans, AreKeptWhereTheyWereMadeForTheSame) {
  LibraryPlans before{here, {}};
  for (const Words& piece : work) before.choices.of[piece] = {5, 6, piece.front()};
  before.choices.of.erase(work[2]);
  before.choices.of[{9, 9}] = {1};  // for work that does not occur any more
  Agreement again{.stored = to_text(before), .never = {5, 6, work[3].front()}};
  const AgreedPlans agreed = again.made(*control);
  expect_the_same_everywhere(agreed);
  EXPECT_EQ(agreed.plans.choices.of.size(), work.size());
  for (int i : {0, 1}) EXPECT_EQ(agreed.plans.choices.of.at(work[std::size_t(i)]), (Words{5, 6, 1}));
  EXPECT_EQ(agreed.plans.choices.of.at(work[2]), (Words{107, 0}));  // was not known
  EXPECT_EQ(agreed.plans.choices.of.at(work[3]), (Words{work[3].front() + 100, 0}));  // was not accepted
  if (control->rank() == 0) {
    EXPECT_EQ(agreed.kept, 2);
    EXPECT_EQ(agreed.chosen, 2);
    EXPECT_EQ(agreed.outdated, "");
  }
}

TEST_F(Plans, AreMadeAnewForAnotherLibraryOrFromWhatCannotBeRead) {
  Agreement one;
  const std::string text = to_text(one.made(*control).plans);
  for (const auto& [stored, outdated] :
       {std::pair(text, std::string(here)), {text.substr(0, text.size() - 1), "?"}, {"nonsense", "?"}}) {
    Agreement other{.made_for = "Library 1.3, GPU X", .stored = stored};
    const AgreedPlans agreed = other.made(*control);
    expect_the_same_everywhere(agreed);
    EXPECT_EQ(agreed.plans.made_for, other.made_for);
    if (control->rank() > 0) continue;
    EXPECT_EQ(agreed.kept, 0);
    EXPECT_EQ(agreed.chosen, 4);
    EXPECT_EQ(agreed.outdated, outdated);
  }
}

TEST_F(Plans, OfOtherRanksDoNotCount) {
  LibraryPlans before{here, {}};
  for (const Words& piece : work) before.choices.of[piece] = {5};
  Agreement mine;
  if (control->rank() > 0) mine = {.made_for = "elsewhere", .stored = to_text(before)};
  const AgreedPlans agreed = mine.made(*control);
  EXPECT_EQ(agreed.plans.choices.of.at(work[0]), (Words{101, 0}));
  EXPECT_EQ(agreed.plans.made_for, here);
}

TEST_F(Plans, AFailureOnRankZeroIsEverybodys) {
  EXPECT_THROW(agree_on_plans(*control, work, here, "",
                              [](const Words&, const Words&) -> Words { throw Error(Exit::internal, "no library"); }),
               Error);
  EXPECT_EQ(control->max(control->rank()), control->size() - 1);  // all ranks still take part
}

TEST_F(Plans, WithoutWorkAreEmpty) {
  const AgreedPlans agreed = agree_on_plans(*control, {}, here, "", nullptr);
  EXPECT_TRUE(agreed.plans.choices.of.empty());
  EXPECT_EQ(to_text(agreed.plans), "");
}

TEST_F(Plans, TextIsReadAsItWasWrittenOrNotAtAll) {
  Agreement one;
  const LibraryPlans plans = one.made(*control).plans;
  const std::string text = to_text(plans);
  ASSERT_TRUE(parse_library_plans(text));
  EXPECT_EQ(*parse_library_plans(text), plans);
  const std::size_t digit = text.find('\n') + 3;
  std::string damaged = text;
  damaged[digit] = 'x';
  EXPECT_FALSE(parse_library_plans(damaged));
  EXPECT_FALSE(parse_library_plans(std::string(text).erase(digit, 1)));
  EXPECT_FALSE(parse_library_plans(text + text.substr(text.find('\n') + 1)));  // everything twice
  EXPECT_FALSE(parse_library_plans(text.substr(0, text.size() - 5)));
  EXPECT_FALSE(parse_library_plans(""));
}

}  // namespace
}  // namespace tessera
