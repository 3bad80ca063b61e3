#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(BatchSection, IsDividedIntoMicroBatches) {
  RunConfig config = sound();
  config.batch.micro = 3;
  EXPECT_EQ(contradictions(config), List{"batch.global: 8 is no multiple of micro 3: use batch.micro 1, 2, 4 or 8, or "
                                         "batch.global 6 or 9"});
}

TEST(BatchSection, NamesEveryMicroBatchThatWouldDo) {
  EXPECT_EQ(batch_advice({.global = 12, .micro = 4}, 2), "use batch.micro 1, 2, 3 or 6, or batch.global 8 or 16");
  EXPECT_EQ(batch_advice({.global = 36, .micro = 5}, 1),
            "use batch.micro 1, 2, 3, 4, 6, 9, 12, 18 or 36, or batch.global 35 or 40");
  EXPECT_EQ(batch_advice({.global = 3, .micro = 2}, 3), "use batch.micro 1, or batch.global 6");
  EXPECT_EQ(batch_advice({.global = 2, .micro = 1}, 3), "no batch.micro divides it: use batch.global 3");
}

TEST(BatchSection, NamesWhatEachRankOfAnyNumberHasAShareOf) {
  EXPECT_EQ(any_ranks_advice({.global = 12, .micro = 2}, 7, 1), "batch.micro 1, or batch.global 14");
  EXPECT_EQ(any_ranks_advice({.global = 12, .micro = 4}, 4, 4), "batch.micro 1 or 3, or batch.global 16");
  EXPECT_EQ(any_ranks_advice({.global = 6, .micro = 2}, 8, 4), "batch.global 16");
}

TEST(BatchSection, LeavesSetsOfExpertsWhole) {
  RunConfig config = sound();
  config.batch.global = 30;
  config.batch.micro = 4;
  config.parallel.expert = 4;
  EXPECT_EQ(contradictions(config).front(),
            "batch.global: 30 is no multiple of micro 4: no batch.micro divides it: use batch.global 16 or 32");
}

}  // namespace
}  // namespace tessera
