// Memory that ranks reach, and kernels that write it between two synchronisations: on CPUs of one host, on GPUs by IPC.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "core/comm/mpi.hpp"
#include "core/device/device.hpp"
#include "kernels/convert/convert.hpp"
#include "tests/support/delaying.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/trial.hpp"

namespace tessera {
namespace {

using test::mpi, test::on_device, test::on_host;

struct World {
  Device device;
  Mesh mesh = mpi().mesh(device, mpi().ranks(), std::chrono::seconds(300));
  int rank = mpi().rank(), size = mpi().size();
  Stream& stream = device.compute();

  World() {
    mesh.wrap([](std::unique_ptr<Communicator> one) { return test::delaying(std::move(one), 5, 2000); });
  }
  /// Whether ranks have a back end that reaches: one rank alone, and ranks that share a GPU, have none.
  bool reaches() const {
    const std::string name = mesh.world().name();
    return size > 1 && name.find("staged(") == std::string::npos && name.find("self") == std::string::npos;
  }
  /// An operation whose exchange stands for `rows` i32 [size], of which each rank would send one element to each.
  Pending move(const Tensor& rows, const DirectMove& direct) {
    ones.assign(static_cast<std::size_t>(size), 1);
    begins.resize(ones.size());
    std::iota(begins.begin(), begins.end(), 0);
    const Exchange all{rows, rows, ones, begins, ones};
    return mesh.world().submit(stream, {Collective::exchange_rows, {&all, 1}, -1, "rows", &direct});
  }
  std::vector<std::int64_t> ones, begins;
};

TEST(PeerMemory, IsWrittenWhenAllAreReadyAndReadWhenAllHaveWritten) {
  World w;
  if (!w.reaches()) GTEST_SKIP() << "no memory of others is reached by " << w.mesh.world().name();
  const SharedMemory memory = w.device.shared(Category::activations, 4096);
  const std::vector<std::byte*> all = w.mesh.world().reach(memory);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(w.size));
  EXPECT_EQ(all[static_cast<std::size_t>(w.rank)], memory.bytes.data);
  const auto rows_of = [&](int rank) {
    return Tensor{all[static_cast<std::size_t>(rank)] + 256, DType::i32, {w.size}};
  };
  const Tensor mine = rows_of(w.rank), number = on_device(w.device, std::vector<std::int32_t>{0});
  for (std::int32_t round = 1; round <= 20; ++round) {
    const std::int32_t value = 100 * round + w.rank;
    w.device.upload(w.stream, number, &value);
    if (round % w.size == w.rank) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // others are ready first
    clear(w.stream, mine);  // a rank that writes before this one is ready writes in vain
    const DirectMove write{[&](Stream& stream) {
      for (int r = 0; r < w.size; ++r) copy(stream, rows_of(r).flat(w.rank, 1), number);
    }, 256};
    w.move(mine, write).wait(w.stream);
    std::vector<std::int32_t> wanted;
    for (int r = 0; r < w.size; ++r) wanted.push_back(100 * round + r);
    EXPECT_EQ(on_host<std::int32_t>(w.device, mine), wanted) << round;
  }
  w.mesh.log()->compare(*mpi().control(std::chrono::seconds(300)));
}

// On the host, memory is reached by its file.
TEST(PeerMemory, IsReachedByAllOrByNone) {
  World w;
  if (!w.reaches() || w.stream.native()) GTEST_SKIP() << "ranks on the CPUs of a host";
  SharedMemory memory = w.device.shared(Category::activations, 4096);
  EXPECT_EQ(w.mesh.world().reach(memory).size(), static_cast<std::size_t>(w.size));
  if (w.rank + 1 == w.size) memory.file = -1;
  EXPECT_TRUE(w.mesh.world().reach(memory).empty());
}

TEST(PeerMemory, RowsAloneMoveDirectly) {
  World w;
  const DirectMove nothing{[](Stream&) {}, 0};
  EXPECT_THROW(w.mesh.world().submit(w.stream, {Collective::all_gather, {}, -1, "", &nothing}), Error);
}

}  // namespace
}  // namespace tessera
