#include "app/training/tell/summary.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

CollectiveCost cost(Collective collective, std::int64_t bytes, std::int64_t count) {
  CollectiveCost made{};
  made.collective = collective;
  made.bytes = bytes;
  made.count = count;
  return made;
}

TEST(CollectiveTotals, CountEveryCallOfEveryEntry) {
  const std::vector<CollectiveCost> costs{cost(Collective::all_to_all, 100, 3), cost(Collective::all_gather, 7, 2),
                                          cost(Collective::all_to_all, 10, 5)};
  const std::vector<CollectiveTotal> totals = totals_of(costs);
  ASSERT_EQ(totals.size(), 2u);  // kinds of collectives that are not called have no line
  EXPECT_EQ(totals[0].collective, Collective::all_gather);
  EXPECT_EQ(totals[0].calls, 2);
  EXPECT_EQ(totals[0].bytes, 14);
  EXPECT_EQ(totals[1].collective, Collective::all_to_all);
  EXPECT_EQ(totals[1].calls, 8);
  EXPECT_EQ(totals[1].bytes, 350);
}

TEST(CollectiveTotals, KnowEveryKindThatMovesModelsBytes) {
  for (Collective kind : {Collective::all_gather, Collective::all_to_all, Collective::exchange_rows,
                          Collective::all_reduce_max, Collective::all_reduce_sum}) {
    const std::vector<CollectiveTotal> totals = totals_of(std::vector{cost(kind, 5, 1)});
    ASSERT_EQ(totals.size(), 1u) << name_of(kind);
    EXPECT_EQ(totals[0].bytes, 5) << name_of(kind);
  }
}

}  // namespace
}  // namespace tessera
