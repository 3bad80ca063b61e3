// Streaming payload between memory and files: blocks that threads write and read, and their contents.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "io/checkpoint/block_ring.hpp"
#include "io/checkpoint/slabs.hpp"
#include "io/files/fault.hpp"
#include "io/files/text_file.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

constexpr std::size_t numbers = 50;
using Filled = BlockRing::Filled;

/// Bytes that encode their position.
std::byte byte_at(std::size_t offset) { return static_cast<std::byte>(offset * 31 % 251); }

void fill(std::size_t number, std::span<std::byte> block) {
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = byte_at(number * block.size() + i);
}

TEST(BlockRing, OfAnOwnerThatFillsIsWrittenOnceAndWhole) {
  const test::TemporaryFolder folder;
  PosixFile file(folder.write("a", ""), PosixFile::Mode::payload);
  BlockRing ring(numbers, Filled::by_owner, [&](std::size_t number, std::span<std::byte> block) {
    file.write(static_cast<std::int64_t>(number * block.size()), block.data(), std::ssize(block));
  });
  for (std::size_t number = 0; number < numbers; ++number) fill(number, ring.next());
  ring.finish();
  const std::string written = read_text_file(folder.path() / "a");
  ASSERT_EQ(written.size(), numbers * static_cast<std::size_t>(LargePages::bytes));
  for (std::size_t i = 0; i < written.size(); ++i)
    if (static_cast<std::byte>(written[i]) != byte_at(i)) FAIL() << "byte " << i;
}

TEST(BlockRing, ThrowsWhatKeptAnyOfItFromTheDisk) {
  const test::TemporaryFolder folder;
  ::setenv("TESSERA_FAULT", "payload:0:enospc", 1);
  fault::arm(0);
  ::unsetenv("TESSERA_FAULT");
  fault::enter(fault::Phase::payload);
  PosixFile file(folder.path() / "full", PosixFile::Mode::replace);
  std::atomic<int> written = 0;
  BlockRing ring(numbers, Filled::by_owner, [&](std::size_t number, std::span<std::byte> block) {
    file.write(static_cast<std::int64_t>(number * block.size()), block.data(), std::ssize(block));
    ++written;
  });
  try {
    for (std::size_t number = 0; number < numbers; ++number) fill(number, ring.next());  // more than the ring has
    ring.finish();
    FAIL() << "a full disk was not noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::environment);
    EXPECT_NE(std::string(error.what()).find("full: cannot be written: No space left on device"), std::string::npos);
  }
  EXPECT_LT(written, static_cast<int>(numbers));
  EXPECT_THROW(ring.finish(), Error);
}

TEST(BlockRing, DropsWhatNobodyWaitsFor) {
  std::atomic<int> worked = 0;
  {
    BlockRing ring(numbers, Filled::by_owner, [&](std::size_t, std::span<std::byte>) { ++worked; });
    fill(0, ring.next());
  }
  EXPECT_EQ(worked, 0);
  {
    BlockRing none(0, Filled::by_owner, [&](std::size_t, std::span<std::byte>) { ++worked; });
    none.finish();
  }
  EXPECT_EQ(worked, 0);
}

TEST(BlockRing, OfThreadsThatFillGivesEveryBlockOnceInOrder) {
  for (const bool slow : {false, true}) {
    BlockRing ring(numbers, Filled::by_threads, [&](std::size_t number, std::span<std::byte> block) {
      if (slow && number % 7 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      fill(number, block.first(64));
      std::ranges::fill(block.last(1), static_cast<std::byte>(number));
    });
    for (std::size_t number = 0; number < numbers; ++number) {
      const std::span<std::byte> block = ring.next();
      ASSERT_EQ(std::ssize(block), LargePages::bytes);
      for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(block[i], byte_at(number * 64 + i)) << number;
      ASSERT_EQ(block.back(), static_cast<std::byte>(number));
    }
  }
}

TEST(BlockRing, ThrowsWhereAReadFailed) {
  for (const std::size_t bad : {std::size_t{0}, std::size_t{3}, numbers - 1}) {
    BlockRing ring(numbers, Filled::by_threads, [&](std::size_t number, std::span<std::byte>) {
      if (number == bad) throw Error(Exit::file, "unreadable");
    });
    std::size_t given = 0;
    try {
      for (; given < numbers; ++given) ring.next();
      ADD_FAILURE() << "block " << bad << " was given";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "unreadable");
    }
    EXPECT_LE(given, bad);
    EXPECT_THROW(ring.next(), Error) << bad;
  }
}

TEST(BlockRing, EndsWhereNobodyTakesAndFillsNoMoreThanItHasRoomFor) {
  std::atomic<int> reads = 0;
  {
    const BlockRing unused(numbers, Filled::by_threads, [&](std::size_t, std::span<std::byte>) { ++reads; });
    for (int before = -1; before != reads || before == 0; std::this_thread::sleep_for(std::chrono::milliseconds(50)))
      before = reads;
    EXPECT_EQ(reads, 20);
  }
  EXPECT_EQ(reads, 20);
}

/// Tensors of two files in several parts, and a rank's ranges of them.
struct Random {
  explicit Random(unsigned seed) {
    std::minstd_rand chance(seed);
    std::int64_t end[2] = {4096, 10'000};
    for (int i = 0; i < 12; ++i) {
      const bool model = i < 5, foreign = seed % 4 == 3;
      const std::int64_t parts = 1 + static_cast<std::int64_t>(chance() % 3),
                         drawn = 1 + static_cast<std::int64_t>(chance() % (i % 3 ? 1'000'000 : 5000)),
                         count = i == 3 ? 15'000'000 : drawn;  // large enough for several system calls
      StoredTensor& tensor = tensors.emplace_back();
      tensor.slot = model ? "model" : "adamw/m";
      tensor.shape = {parts * count};
      tensor.type = i % 4 == 1 ? DType::bf16 : DType::f32;
      for (std::int64_t part = 0; part < parts; ++part) {
        std::int64_t& at = end[model ? 0 : 1];
        tensor.parts.push_back({part * count, count, at + (foreign ? 1 : 0)});
        at = (at + count * size_of(tensor.type) + 8) / 8 * 8;
      }
      StateTensor& held_one = held.emplace_back();
      held_one.shape = tensor.shape;
      for (std::int64_t first = static_cast<std::int64_t>(chance() % 3); first < parts * count;) {
        const std::int64_t n = std::min(parts * count - first, 1 + static_cast<std::int64_t>(chance() % 400'000));
        held_one.ranges.push_back({first, {memory.data(), tensor.type, {n}}});
        first += n + static_cast<std::int64_t>(chance() % 2 * 1000);
      }
    }
    tensors[6].parts.clear();  // of no use to this walk
    for (std::size_t i = 0; i < tensors.size(); ++i) stored.push_back(i == 6 ? nullptr : &tensors[i]);
  }
  std::vector<std::byte> memory = std::vector<std::byte>(1'600'000);  ///< of any range; untouched
  std::vector<StoredTensor> tensors;
  std::vector<StateTensor> held;
  StoredTensors stored;
};

TEST(Slabs, CoverARanksElementsOnceAndInOrder) {
  for (unsigned seed = 1; seed < 9; ++seed) {
    const Random state(seed);
    const std::vector<Slab> slabs = slabs_of(state.held, state.stored);
    std::size_t at = 0;
    for (std::size_t i = 0; i < state.held.size(); ++i)
      for (const StateRange& range : state.held[i].ranges)
        for (std::int64_t done = 0; state.stored[i] && done < range.values.elements(); ++at) {
          ASSERT_LT(at, slabs.size());
          ASSERT_EQ(slabs[at].tensor, i);
          ASSERT_EQ(slabs[at].first, range.first + done);
          ASSERT_EQ(static_cast<std::byte*>(slabs[at].values.data) - state.memory.data(),
                    done * size_of(range.values.type));
          const StoredTensor::Part& part = state.stored[i]->parts.at(slabs[at].part);
          done += slabs[at].values.elements();
          ASSERT_TRUE(slabs[at].first >= part.first &&
                      slabs[at].first + slabs[at].values.elements() <= part.first + part.count);
        }
    EXPECT_EQ(at, slabs.size());
  }
}

TEST(Windows, HoldAllTransfersEachWithinItsBlock) {
  for (unsigned seed = 1; seed < 9; ++seed) {
    const Random state(seed);
    const std::vector<Slab> slabs = slabs_of(state.held, state.stored);
    const std::vector<Window> windows = windows_of(state.stored, slabs);
    const Slab* next = slabs.data();
    std::vector<std::byte> memory(static_cast<std::size_t>(LargePages::bytes));
    for (const Window& window : windows) {
      ASSERT_EQ(window.slabs.data(), next);
      next += window.slabs.size();
      ASSERT_EQ(window.at(memory, window.begin), memory.data() + window.begin % page_bytes);
      ASSERT_LE(window.end - window.begin / page_bytes * page_bytes, LargePages::bytes);
      ASSERT_LE((window.end + page_bytes - 1) / page_bytes - window.begin / page_bytes, LargePages::bytes / page_bytes);
      std::int64_t end = window.begin;
      for (const Slab& slab : window.slabs) {
        ASSERT_EQ(window.file, state.stored[slab.tensor]->slot == "model" ? 0u : 1u);
        ASSERT_GE(offset_of(state.stored, slab), end);
        end = offset_of(state.stored, slab) + bytes_of(state.stored, slab);
      }
      ASSERT_EQ(end, window.end);
    }
    EXPECT_EQ(next, slabs.data() + slabs.size());
    EXPECT_LT(windows.size(), slabs.size());
  }
}

TEST(Calls, OfAllRanksAreAsManyWhateverOneOfThemHolds) {
  Random state(5);
  std::vector<std::vector<std::size_t>> calls;  // by how much is held: of each part
  for (const int share : {0, 1, 2}) {
    if (share == 1)
      for (StateTensor& tensor : state.held) tensor.ranges.resize(1);
    if (share == 2)
      for (StateTensor& tensor : state.held) tensor.ranges.clear();
    const std::vector<Slab> slabs = slabs_of(state.held, state.stored);
    for (const bool fails : {false, true}) {
      std::vector<std::size_t>& made = calls.emplace_back();
      std::size_t moved = 0;
      const auto call = [&](const StoredTensor& tensor, std::size_t part, std::span<const Slab> now,
                            std::byte* memory) {
        ASSERT_TRUE(memory);
        made.push_back(static_cast<std::size_t>(&tensor - state.tensors.data()) * 10 + part);
        for (const Slab& slab : now) ASSERT_EQ(&slab, &slabs[moved++]);
        if (fails) throw Error(Exit::environment, "refused");
      };
      if (fails)
        EXPECT_THROW(each_call(state.stored, slabs, true, call), Error);
      else
        each_call(state.stored, slabs, true, call);
      EXPECT_TRUE(fails || moved == slabs.size());
    }
  }
  for (const auto& made : calls) EXPECT_EQ(made, calls.front());
  std::size_t alone = 0;
  each_call(state.stored, {}, false, [&](const auto&, std::size_t, auto, std::byte*) { ++alone; });
  EXPECT_EQ(alone, 0u);
}

}  // namespace
}  // namespace tessera
