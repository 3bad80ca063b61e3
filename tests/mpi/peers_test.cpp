#include "core/comm/peers.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/mpi.hpp"

namespace tessera {
namespace {

/// As on several hosts: over this machine's network rather than within it. Killed ranks: tests/fault/run_test.py.
TEST(Peers, RanksOfSeveralHostsPartInOrderWithoutAnAlarm) {
  Mpi mpi(nullptr, nullptr);
  const auto control = mpi.control(std::chrono::seconds(300));
  std::vector<std::string> hosts;
  for (int r = 0; r < mpi.size(); ++r) hosts.push_back("host" + std::to_string(r));
  for (int last = 0; last < mpi.size(); ++last) {
    testing::internal::CaptureStderr();
    std::unique_ptr<Peers> peers = Peers::connect(*control, hosts);
    const std::string told = testing::internal::GetCapturedStderr();
    const bool all_can = control->max(told.empty() ? 0 : 1) == 0;  // else rank 0 says that this machine has no network
    if (all_can) {
      EXPECT_EQ(peers != nullptr, mpi.size() > 1);
    }
    if (mpi.rank() != last) peers.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    control->max(0);  // reached by all: none has taken an end in order for a death
    peers.reset();
    control->max(0);
  }
}

}  // namespace
}  // namespace tessera
