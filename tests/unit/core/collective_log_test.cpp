#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/comm/control.hpp"
#include "core/comm/mpi_counts.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

/// An operation; its memory is never accessed.
struct Sketch {
  Collective collective = Collective::all_gather;
  DType type = DType::f32;
  std::vector<std::int64_t> counts{3, 5};
  int buckets = 1;
  int group = 2;
  const char* label = "weights";
  const char* processes = "";
};

using Add = void (CollectiveLog::*)(const Operation&, const char*, bool);

void add(CollectiveLog& log, Add how, const Sketch& sketch) {
  std::int64_t n = 0;
  for (std::int64_t count : sketch.counts) n += count;
  const std::vector<std::int64_t> begins(sketch.counts.size());
  const std::vector<Exchange> exchanges(static_cast<std::size_t>(sketch.buckets),
                                        Exchange{{}, {nullptr, sketch.type, {n}}, sketch.counts, begins});
  (log.*how)({sketch.collective, exchanges, sketch.group, sketch.label}, sketch.processes, true);
}
void note(CollectiveLog& log, const Sketch& sketch) { add(log, &CollectiveLog::note, sketch); }

std::uint64_t chain_of(const std::vector<Sketch>& sketches) {
  CollectiveLog log;
  for (const Sketch& sketch : sketches) note(log, sketch);
  return log.chain();
}

TEST(CollectiveLog, ChainDependsOnEveryPartOfTheFingerprint) {
  const Sketch one;
  EXPECT_EQ(chain_of({one, one}), chain_of({one, one}));
  const std::vector<std::vector<Sketch>> others = {
      {}, {one}, {one, one}, {{.collective = Collective::all_to_all}}, {{.collective = Collective::all_reduce_sum}},
      {{.type = DType::i32}}, {{.counts = {5, 3}}}, {{.counts = {4, 4}}}, {{.counts = {8}}}, {{.buckets = 2}},
      {{.buckets = 0}}, {{.group = -1}}, {{.group = 3}}, {{.label = "grads"}}, {{.label = ""}},
      {{.processes = "expert-data"}}, {{.processes = "experts"}},
      {one, {.group = 3}}, {{.group = 3}, one}};
  std::set<std::uint64_t> chains;
  for (const auto& sketches : others) chains.insert(chain_of(sketches));
  EXPECT_EQ(chains.size(), others.size());
}

TEST(CollectiveLog, CountsOfRowsAreData) {
  const Sketch rows{.collective = Collective::exchange_rows}, others{.collective = rows.collective, .counts = {5, 3}};
  EXPECT_EQ(chain_of({rows}), chain_of({others}));
  EXPECT_NE(chain_of({rows}), chain_of({{.collective = rows.collective, .type = DType::i32}}));
  EXPECT_NE(chain_of({rows}), chain_of({{.collective = rows.collective, .label = "answers"}}));
  EXPECT_NE(chain_of({rows}), chain_of({{}}));
}

TEST(CollectiveLog, TailHoldsTheLastSixteen) {
  CollectiveLog log;
  for (int i = 0; i < 20; ++i) note(log, {.group = i});
  const std::string tail = log.tail();
  EXPECT_EQ(std::count(tail.begin(), tail.end(), '\n'), 16);
  EXPECT_EQ(tail.substr(0, 3), "#4 ");
  EXPECT_NE(tail.find("\n#19 all_gather 1 x f32, 8 elements (cut "), std::string::npos) << tail;
  EXPECT_NE(tail.find("), group 19, weights\n"), std::string::npos) << tail;
  note(log, {.processes = "expert-data"});
  EXPECT_NE(log.tail().find("), group 2 of expert-data, weights\n"), std::string::npos) << log.tail();
}

TEST(CollectiveLog, ReplaysAreNotedAsIfTheyHadBeenSubmitted) {
  const Sketch before{.group = 7}, between{.group = 8};
  const Sketch sums{.collective = Collective::all_reduce_sum}, expert{.group = 3, .processes = "expert-data"};
  const std::vector<Sketch> step{{}, expert, sums};
  CollectiveLog eager, replayed;
  const auto expect_equal = [&] {
    EXPECT_EQ(replayed.chain(), eager.chain());
    EXPECT_EQ(replayed.noted(), eager.noted());
    EXPECT_EQ(replayed.tail(), eager.tail());
  };
  for (CollectiveLog* log : {&eager, &replayed}) note(*log, before);
  for (const Sketch& sketch : step) add(replayed, &CollectiveLog::keep, sketch);
  expect_equal();  // what is captured does not run yet
  for (int round = 0; round < 7; ++round) {
    for (const Sketch& sketch : step) note(eager, sketch);
    replayed.repeat();
    expect_equal();
    for (CollectiveLog* log : {&eager, &replayed}) note(*log, between);
  }
  expect_equal();
}

std::string tail_of(const std::vector<Sketch>& sketches) {
  CollectiveLog log;
  for (const Sketch& sketch : sketches) note(log, sketch);
  return log.tail();
}

TEST(FirstDifference, NamesOperationAndRanks) {
  const Sketch gather, reduce{.collective = Collective::all_reduce_max, .type = DType::u16};
  const std::string usual = tail_of({gather, gather, reduce}), other = tail_of({gather, reduce, gather});
  const std::string text = first_difference({{0, usual}, {1, other}, {2, usual}});
  EXPECT_EQ(text.find("collectives disagree, first at #1:\n"), 0u) << text;
  EXPECT_NE(text.find("weights on ranks 0, 2"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  all_reduce_max 1 x u16"), std::string::npos) << text;
  EXPECT_NE(text.find("on rank 1"), std::string::npos) << text;
}

TEST(FirstDifference, NamesWhoHasNotCome) {
  const Sketch gather;
  const std::string text = first_difference({{0, tail_of({gather})}, {1, tail_of({gather, gather})}, {3, ""}});
  EXPECT_EQ(text.find("collectives disagree, first at #0:\n"), 0u) << text;
  EXPECT_NE(text.find("nothing yet on rank 3"), std::string::npos) << text;
}

TEST(FirstDifference, IgnoresWhatHasLeftATail) {
  const std::vector<Sketch> many(20), more(25);
  const std::string text = first_difference({{0, tail_of(many)}, {1, tail_of(more)}});
  EXPECT_EQ(text.find("collectives disagree, first at #20:\n"), 0u) << text;
  EXPECT_EQ(first_difference({{0, tail_of(many)}, {1, tail_of(many)}}), "");
  EXPECT_EQ(first_difference({{0, ""}, {1, ""}}), "");
}

/// Control of one of two ranks; the test gives the other one's votes.
class TwoRanks final : public Control {
 public:
  TwoRanks(const CollectiveLog& other) : other_(other) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::int64_t max(std::int64_t value) override {
    const auto theirs = static_cast<std::int64_t>(other_.chain());
    return std::max(value, calls_++ == 0 ? theirs : ~theirs);
  }
  std::vector<std::string> gather(const std::string& mine) override { return {mine, other_.tail()}; }
  std::string broadcast(const std::string& text) override { return text; }
  double sum_in_order(double value) override { return value; }
  void sum(std::uint64_t*, int) override {}
  void leave(const std::string& why) override { throw Error(Exit::communication, why); }

 private:
  const CollectiveLog& other_;
  int calls_ = 0;
};

TEST(CollectiveLog, ComparesWithTheOthers) {
  CollectiveLog mine, same, other;
  for (CollectiveLog* log : {&mine, &same, &other}) note(*log, {});
  note(mine, {.group = 5});
  note(same, {.group = 5});
  note(other, {.group = 6});
  TwoRanks with_same(same), with_other(other);
  EXPECT_NO_THROW(mine.compare(with_same));
  try {
    mine.compare(with_other);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::communication);
    EXPECT_NE(std::string(error.what()).find("first at #1:"), std::string::npos) << error.what();
  }
}

TEST(CollectiveLog, SaysSoWhenTheDifferenceIsOlderThanItsTails) {
  CollectiveLog mine, other;
  note(mine, {.group = 1});
  note(other, {.group = 2});
  for (int i = 0; i < 16; ++i) { note(mine, {}); note(other, {}); }
  TwoRanks control(other);
  try {
    mine.compare(control);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("before the last 16"), std::string::npos) << error.what();
  }
}

constexpr std::int64_t int_max = 2147483647;

TEST(MpiCounts, CountsInElementsWhileTheyFit) {
  const std::int64_t counts[] = {int_max - 1, 1}, begins[] = {0, int_max - 1};
  EXPECT_EQ(block_of(counts, begins, int_max, int_max), 1);
}

TEST(MpiCounts, CountsInBlocksBeyond) {
  const std::int64_t counts[] = {3LL << 30, 0, 3LL << 30}, begins[] = {0, 3LL << 30, 3LL << 30};
  const std::int64_t block = block_of(counts, begins, 6LL << 30, int_max);
  EXPECT_EQ(block, 1LL << 30);  // the common divisor, 3 * 2^30, does not fit an int
  const std::int64_t uneven[] = {96LL << 26, 32}, at[] = {0, 96LL << 26};
  EXPECT_EQ(block_of(uneven, at, (96LL << 26) + 32, int_max), 32);
  const std::int64_t large[] = {1LL << 33, 1LL << 33}, places[] = {0, 1LL << 33};
  EXPECT_EQ(block_of(large, places, 1LL << 34, int_max), 1LL << 30) << "less than what divides them all";
}

TEST(MpiCounts, RefusesWhatNoBlockMakesFit) {
  const std::int64_t counts[] = {int_max, 1}, begins[] = {0, int_max};
  EXPECT_THROW(block_of(counts, begins, 1LL << 31, int_max), Error);
}

TEST(MpiCounts, PiecesCoverEverythingOnce) {
  for (std::int64_t n : {std::int64_t{0}, std::int64_t{1}, int_max, int_max + 1, 5 * int_max + 3}) {
    SCOPED_TRACE(test::shown(n));
    std::int64_t next = 0;
    for_each_piece(n, int_max, [&](std::int64_t begin, int count) {
      EXPECT_EQ(begin, next);
      EXPECT_GT(count, 0);
      next = begin + count;
    });
    EXPECT_EQ(next, n);
  }
}

}  // namespace
}  // namespace tessera
