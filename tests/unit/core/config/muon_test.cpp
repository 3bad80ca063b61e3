#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(MuonSection, CountsWithMuonAlone) {
  RunConfig config = sound();
  EXPECT_EQ(advice(config), List{});
  config.optimizer.muon.momentum = 0.9;
  config.optimizer.muon.scale = MuonScale::rms;
  EXPECT_EQ(advice(config), (List{"optimizer.muon.momentum: has an effect only with matrices: muon",
                                  "optimizer.muon.scale: has an effect only with matrices: muon"}));
  config.optimizer.matrices = MatrixRule::muon;
  EXPECT_EQ(advice(config), List{});
}

}  // namespace
}  // namespace tessera
