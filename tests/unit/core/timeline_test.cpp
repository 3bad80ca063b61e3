#include "core/device/timeline.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

using enum RegionName;

void pass_time() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

std::map<std::string, double> seconds_of(Device& device) {
  std::map<std::string, double> by_name;
  for (const RegionTime& region : device.timeline().regions()) by_name[name_of(region.name)] = region.seconds;
  return by_name;
}

double of(const DeviceTime& time, RegionName name) { return time.regions[static_cast<std::size_t>(name)]; }

// Names of regions, which tools and scripts use.
TEST(Timeline, NamesOfRegionsStay) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < region_names; ++i) names.emplace_back(name_of(static_cast<RegionName>(i)));
  EXPECT_EQ(names, (std::vector<std::string>{"outside", "step", "gradient", "attention", "products", "experts", "norms",
                                             "head and loss", "reduce", "update", "publish", "waiting", "collective",
                                             "evaluate", "report"}));
}

TEST(Timeline, ARegionsTimeIsWithoutThatOfRegionsInIt) {
  Device device;
  const std::int64_t begin = host_nanoseconds();
  {
    const Region outer(device.compute(), step);
    for (int i = 0; i < 3; ++i) {
      const Region inner(device.compute(), products);
      pass_time();
    }
  }
  const double all = 1e-9 * static_cast<double>(host_nanoseconds() - begin);
  std::map<std::string, double> seconds = seconds_of(device);
  EXPECT_GE(seconds["products"], 9e-3);
  EXPECT_LE(seconds["products"] + seconds["step"], all);
  EXPECT_LE(seconds["step"], all - 9e-3);
}

TEST(Timeline, LayersOfAnEvaluationArePartOfIt) {
  Device device;
  {
    const Region outer(device.compute(), evaluate);
    const Region inner(device.compute(), attention);
    pass_time();
  }
  { const Region alone(device.compute(), attention); }  // outside of steps, as in a sample
  std::map<std::string, double> seconds = seconds_of(device);
  EXPECT_GE(seconds["evaluate"], 3e-3);
  EXPECT_FALSE(seconds.contains("attention"));
}

TEST(Timeline, AStreamWithoutADeviceAndAPlanHaveNone) {
  Device planning(Device::Kind::measuring);
  EXPECT_EQ(Timeline::of(planning.compute()), nullptr);
  { const Region region(planning.compute(), step); }
  EXPECT_EQ(planning.timeline().regions().size(), 1u);
}

TEST(Timeline, KeepsPassagesWhileItRecords) {
  Device device;
  Timeline& timeline = device.timeline();
  Stream& compute = device.compute();
  { const Region before(compute, step); }
  timeline.record(compute);
  timeline.begin_step(5);
  const std::int64_t begin = host_nanoseconds();
  {
    const Region outer(compute, step);
    const Region inner(compute, norms);
    timeline.carried(compute, {"all_gather", "weights", 12}, 2, begin);
  }
  { const Region between(compute, evaluate); }
  timeline.stop();
  { const Region after(compute, step); }
  const std::vector<Stretch>& kept = timeline.on_host();
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_EQ((std::array{kept[0].name, kept[1].name, kept[2].name, kept[3].name}),
            (std::array{step, norms, collective, evaluate}));
  EXPECT_EQ((std::array{kept[0].around, kept[1].around, kept[2].around, kept[3].around}), (std::array{-1, 0, -1, -1}));
  EXPECT_EQ((std::array{kept[0].step, kept[1].step, kept[2].step, kept[3].step}),
            (std::array<std::int64_t, 4>{5, 5, 5, 0}));
  EXPECT_TRUE(kept[0].begin <= kept[1].begin && kept[1].end <= kept[0].end && kept[0].end <= kept[3].begin);
  EXPECT_EQ(kept[2].begin, begin);
  EXPECT_EQ(kept[2].transfer.bytes, 12);
}

TEST(Timeline, AGpuTellsItsOwnTimes) {
  Device device;
  Timeline& timeline = device.timeline();
  const Tensor t = test::poisoned<float>(device, {1 << 22});
  device.wait(device.compute().record());
  timeline.record(device.compute());
  timeline.begin_step(1);
  {
    const Region outer(device.compute(), step);
    const Region inner(device.compute(), update);
    for (int i = 0; i < 100; ++i) fill(device.compute(), t, i);
  }
  timeline.stop();
  device.wait(device.compute().record());
  const std::vector<Stretch> spent = timeline.on_device();
  ASSERT_EQ(spent.size(), device.compute().native() ? 2u : 0u);
  if (spent.empty()) return;
  EXPECT_EQ(spent[1].around, 0);
  EXPECT_TRUE(spent[0].begin <= spent[1].begin && spent[1].end <= spent[0].end);
  const DeviceTime time = time_of(spent, device.compute(), device.communication());
  EXPECT_EQ(time.steps, 1);
  EXPECT_GT(of(time, update), 0.5 * time.seconds);
  EXPECT_GE(spent[0].begin, timeline.on_host()[0].begin);
  EXPECT_LE(spent[0].end, host_nanoseconds());
}

/// Lists of stretches on two streams, on which nothing runs.
class Spent : public ::testing::Test {
 protected:
  static constexpr std::int64_t second = 1'000'000'000;
  void add(const Stream& stream, RegionName name, int around, std::int64_t begin, std::int64_t end,
           std::int64_t step = 1) {
    all.push_back({name, {}, &stream, step, around, 0, begin * second, end * second});
  }
  DeviceTime time() const { return time_of(all, compute, communication); }

  Tape tape;
  Stream compute{Priority::normal, &tape}, communication{Priority::normal, &tape};
  std::vector<Stretch> all;
};

TEST_F(Spent, EachRegionWithoutThoseInIt) {
  add(compute, step, -1, 0, 10);
  add(compute, gradient, 0, 1, 8);
  add(compute, products, 1, 2, 5);
  add(compute, waiting, 2, 3, 4);
  add(compute, evaluate, -1, 10, 20, 0);
  add(compute, products, 4, 11, 20, 0);
  add(compute, step, -1, 20, 26, 2);
  const DeviceTime spent = time();
  EXPECT_EQ(spent.steps, 2);
  EXPECT_DOUBLE_EQ(spent.seconds, 16);
  EXPECT_DOUBLE_EQ(of(spent, step), 9);
  EXPECT_DOUBLE_EQ(of(spent, gradient), 4);
  EXPECT_DOUBLE_EQ(of(spent, products), 2);
  EXPECT_DOUBLE_EQ(of(spent, waiting), 1);
  EXPECT_DOUBLE_EQ(of(spent, evaluate), 0);
  EXPECT_DOUBLE_EQ(spent.communication, 0);
}

TEST_F(Spent, CommunicationIsExposedWhereComputeWaitsForIt) {
  add(compute, step, -1, 0, 30);
  add(communication, collective, -1, 1, 6);
  add(compute, waiting, 0, 4, 8);  // from 6 on for a local sum
  add(communication, collective, -1, 10, 14);
  add(communication, collective, -1, 15, 17);
  add(compute, waiting, 0, 12, 16);
  add(compute, waiting, 0, 20, 21);
  const DeviceTime spent = time();
  EXPECT_DOUBLE_EQ(spent.communication, 11);
  EXPECT_DOUBLE_EQ(spent.exposed, 2 + 2 + 1);
  EXPECT_DOUBLE_EQ(of(spent, waiting), 9);
}

}  // namespace
}  // namespace tessera
