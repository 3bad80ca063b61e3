#include "core/device/device.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "core/device/timeline.hpp"
#include "core/step/repeated_work.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/external_event.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

constexpr std::int64_t n = 1 << 20;
using Values = std::vector<float>;

Tensor floats(Device& device) { return test::poisoned<float>(device, {n}); }

std::map<std::string, std::int64_t> waits(const Device& device) {
  std::map<std::string, std::int64_t> by_name;
  for (const RegionTime& region : device.timeline().regions()) by_name[name_of(region.name)] = region.waits;
  return by_name;
}

TEST(Device, StreamsAreOrderedByEvents) {
  Device device;
  const Tensor source = floats(device), middle = floats(device), target = floats(device);
  device.wait(device.compute().record());
  for (int round = 0; round < 20; ++round) {
    fill(device.compute(), source, round);
    device.communication().wait(device.compute().record());
    copy(device.communication(), middle, source);
    device.compute().wait(device.communication().record());
    copy(device.compute(), target, middle);
  }
  EXPECT_EQ(test::on_host<float>(device, target), Values(n, 19.0f));
}

TEST(Device, AnEventIsReachedOnceItsWorkIsDoneAndTellsTheTime) {
  Device device;
  const Tensor t = floats(device);
  EXPECT_TRUE(Event().reached());
  const auto before = std::chrono::steady_clock::now();
  const Event begin = device.compute().record_time();
  for (int i = 0; i < 100; ++i) fill(device.compute(), t, i);
  const Event end = device.compute().record_time();
  device.wait(end);
  const std::chrono::duration<double> on_the_host = std::chrono::steady_clock::now() - before;
  EXPECT_TRUE(begin.reached() && end.reached());
  EXPECT_GT(end.seconds_since(begin), 0);
  EXPECT_LE(end.seconds_since(begin), on_the_host.count() + 1e-3);
}

TEST(Device, ATimeIsKeptWhateverElseIsRecorded) {
  Device device;
  Stream& stream = device.compute();
  const Event begin = stream.record_time();
  const auto before = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int i = 0; i < 2 * Stream::events_kept; ++i) stream.record();
  const Event end = stream.record_time();
  device.wait(end);
  const std::chrono::duration<double> on_the_host = std::chrono::steady_clock::now() - before;
  EXPECT_GE(end.seconds_since(begin), 0.015);
  EXPECT_LE(end.seconds_since(begin), on_the_host.count() + 0.1);
}

TEST(Device, AnEventRecordedAgainStandsForALaterPoint) {
  Device device;
  const Event first = device.compute().record();
  for (int i = 0; i < 2 * Stream::events_kept + 1; ++i) device.compute().record();
  device.wait(first);
  EXPECT_TRUE(first.reached());
}

TEST(Device, PinnedMemoryGoesUpAndComesDown) {
  Device device;
  const Tensor t = floats(device);
  const std::int64_t before = device.host_waits();
  const std::span<std::byte> up = device.pinned(t.bytes()), down = device.pinned(t.bytes());
  ASSERT_EQ(std::ssize(up), t.bytes());
  const Values values = test::uniform<float>(n, 3);
  std::memcpy(up.data(), values.data(), up.size());
  device.send(device.compute(), t, up.data());
  const Event there = device.fetch(device.compute(), down.data(), t);
  EXPECT_EQ(device.host_waits(), before);  // neither waits
  device.wait(there);
  EXPECT_EQ(device.host_waits(), before + 1);
  EXPECT_EQ(std::memcmp(down.data(), values.data(), down.size()), 0);
}

TEST(Device, WaitsBelongToTheInnermostRegion) {
  Device device;
  const Tensor t = device.allocate(Category::batch, DType::f32, {1});
  float value = 1;
  {
    const Region outer(device.compute(), RegionName::step);
    device.upload(device.compute(), t, &value);
    {
      const Region inner(device.compute(), RegionName::update);
      device.download(device.compute(), &value, t);
      device.wait(device.compute().record());
    }
    device.download(device.compute(), &value, t);
  }
  device.download(device.compute(), &value, t);
  const std::map<std::string, std::int64_t> expected{{"outside", 1}, {"step", 2}, {"update", 2}};
  EXPECT_EQ(waits(device), expected);
  EXPECT_EQ(device.host_waits(), 5);
}

TEST(Device, AMeasuringOneRunsNothing) {
  Device device(Device::Kind::measuring);
  const Tensor t = device.allocate(Category::weights, DType::f32, {n});
  EXPECT_TRUE(device.pinned(8).empty());
  EXPECT_TRUE(device.send(device.compute(), t, nullptr).reached());
  fill(device.compute(), t, 1);
  EXPECT_EQ(device.compute().launches(), 1);
  EXPECT_EQ(device.memory()[static_cast<std::size_t>(Category::weights)], n * 4);
}

TEST(Device, AWorkspaceIsTakenOnceForEachPurpose) {
  Device device;
  Stream& stream = device.compute();
  const std::string purpose = "sums";
  std::byte* const first = stream.workspace(purpose.c_str(), 1000);
  const std::int64_t allocations = device.allocations();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(stream.workspace("sums", 1000), first);
  EXPECT_EQ(stream.workspace("sums", 7), first);
  EXPECT_EQ(stream.workspace("nothing", 0), nullptr);
  EXPECT_EQ(device.allocations(), allocations);
  EXPECT_NE(stream.workspace("rows", 1000), first);
  EXPECT_EQ(device.allocations(), allocations + 1);
  EXPECT_NE(stream.workspace("sums", 1001), first);
  ASSERT_EQ(stream.workspaces().size(), 2u);
  EXPECT_EQ(stream.workspaces()[0].bytes, 1001);
  EXPECT_EQ(stream.workspaces()[1].bytes, 1000);
  EXPECT_EQ(device.memory()[static_cast<std::size_t>(Category::libraries)], 3 * 1024);
}

TEST(Device, AMeasuringOneNotesWorkspaces) {
  Device device(Device::Kind::measuring);
  Stream& stream = device.compute();
  for (std::int64_t bytes : {10, 300, 20}) EXPECT_NE(stream.workspace("sums", bytes), nullptr);
  ASSERT_EQ(stream.workspaces().size(), 1u);
  EXPECT_EQ(stream.workspaces()[0].bytes, 300);
  EXPECT_EQ(device.memory(), MemoryReport{});
}

TEST(Device, ACapturedGraphRunsAgainOnAllItsStreams) {
  Device device;
  if (!device.compute().native()) GTEST_SKIP() << "only a GPU's streams can be captured";
  const Tensor source = floats(device), middle = floats(device), target = floats(device);
  device.wait(device.compute().record());
  const auto work = [&] {
    copy(device.compute(), middle, source);
    device.communication().wait(device.compute().record());
    copy(device.communication(), target, middle);
    device.compute().wait(device.communication().record());
  };
  fill(device.compute(), source, 1);
  work();
  const Graph graph = device.compute().capture(work);
  ASSERT_TRUE(graph);
  EXPECT_EQ(test::on_host<float>(device, target), Values(n, 1.0f));  // recorded, not run
  for (float value : {2.0f, 3.0f}) {
    SCOPED_TRACE(test::shown(value));
    fill(device.compute(), source, value);
    device.compute().run(graph);
    EXPECT_EQ(test::on_host<float>(device, target), Values(n, value));
  }
}

TEST(Device, AnEventOutlastsACaptureOfMany) {
  Device device;
  if (!device.compute().native()) GTEST_SKIP() << "only a GPU's streams can be captured";
  const Tensor t = floats(device);
  fill(device.compute(), t, 1);
  const Event before = device.compute().record();
  const Graph graph = device.compute().capture([&] {
    for (int i = 0; i < Stream::events_kept + 1; ++i) device.compute().record();
    fill(device.compute(), t, 2);
  });
  device.wait(before);
  EXPECT_TRUE(before.reached());
  device.compute().run(graph);
  EXPECT_EQ(test::on_host<float>(device, t), Values(n, 2.0f));
}

TEST(Device, ADryStreamIsCapturedAndItsGraphRunsNothing) {
  Device device(Device::Kind::measuring);
  Stream& stream = device.compute();
  int calls = 0;
  const Graph graph = stream.capture([&] {
    ++calls;
    EXPECT_TRUE(stream.capturing());
    EXPECT_THROW(stream.capture([] {}), Error) << "one at a time";
  });
  EXPECT_TRUE(graph);
  EXPECT_FALSE(stream.capturing());
  stream.run(graph);
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(stream.capture([] { throw Error(Exit::internal, "broken"); }), Error);
  EXPECT_FALSE(stream.capturing());
  Device host;
  if (!host.compute().native()) {
    EXPECT_THROW(host.compute().capture([] {}), Error);
  }
}

TEST(Device, RepeatedWorkGoesOnAsItBegan) {
  Device device;
  const Tensor from = floats(device), to = floats(device);
  device.wait(device.compute().record());
  Mesh mesh = self_mesh();
  RepeatedWork repeated(device, mesh);
  const RepeatedWork::State usual{1, 2}, other{1, 3};
  int calls = 0, replays = 0;
  for (int round = 0; round < 9; ++round) {
    fill(device.compute(), from, static_cast<float>(round));
    repeated.run(round == 6 ? other : usual, [&] {
      ++calls;
      device.communication().wait(device.compute().record());
      copy(device.communication(), to, from);
      device.compute().wait(device.communication().record());
    }, [&] { ++replays; });
    EXPECT_EQ(calls + replays, round + 1);
    EXPECT_EQ(test::on_host<float>(device, to), Values(n, static_cast<float>(round)));
  }
  EXPECT_EQ(repeated.replays(), replays);
  EXPECT_EQ(replays, device.compute().native() ? 5 : 0) << "not 0, 1, recorded in 2, not 6";
}

/// Slow copies to the host whose source is overwritten by RepeatedWork, eager and replayed: it must wait for the event.
TEST(Device, WorkWaitsForAnExternalEventWheneverItRuns) {
  constexpr int copies = 16;
  Device device;
  const Tensor value = floats(device), next = floats(device);
  std::span<std::byte> pinned = device.pinned(copies * value.bytes());
  const std::span<std::byte> last = pinned.last(static_cast<std::size_t>(value.bytes()));
  ExternalEvent copied;
  EXPECT_TRUE(copied.reached());
  Mesh mesh = self_mesh();
  RepeatedWork repeated(device, mesh);
  fill(device.compute(), value, 0);
  for (int round = 0; round < 6; ++round) {
    if (round != 1) {  // in round 1 the event has been reached before
      device.saves().wait(device.compute().record());
      for (int c = 0; c < copies; ++c) device.fetch(device.saves(), pinned.data() + c * value.bytes(), value);
      copied.record(device.saves());
    }
    fill(device.compute(), next, static_cast<float>(round + 1));
    repeated.run({}, [&] {
      copied.hold(device.compute());
      copy(device.compute(), value, next);
    }, [] {});
    EXPECT_EQ(test::on_host<float>(device, value), Values(n, static_cast<float>(round + 1)));
    EXPECT_TRUE(copied.reached());
    Values seen(n);
    std::memcpy(seen.data(), last.data(), last.size());
    EXPECT_EQ(seen, Values(n, static_cast<float>(round == 1 ? 0 : round)));
  }
  EXPECT_EQ(repeated.replays(), device.compute().native() ? 3 : 0);
}

TEST(Device, WorkThatThrowsWhileItIsRecordedLeavesTheStreamUsable) {
  Device device;
  if (!device.compute().native()) GTEST_SKIP() << "only a GPU's streams can be captured";
  const Tensor t = floats(device);
  const auto work = [&] {
    fill(device.compute(), t, 1);
    throw Error(Exit::internal, "as it happens");
  };
  EXPECT_THROW(device.compute().capture(work), Error);
  fill(device.compute(), t, 2);
  EXPECT_EQ(test::on_host<float>(device, t), Values(n, 2.0f));
}

}  // namespace
}  // namespace tessera
