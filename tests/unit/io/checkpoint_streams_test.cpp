// Streaming payload between memory and files: its cuts, and what is written and read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "io/checkpoint/payload.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/fault.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/large_pages.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

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
        tensor.datasets.push_back({part * count, count, at + (foreign ? 1 : 0)});
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
    tensors[6].datasets.clear();  // of no use to this walk
    for (std::size_t i = 0; i < tensors.size(); ++i) stored.push_back(i == 6 ? nullptr : &tensors[i]);
  }
  std::vector<std::byte> memory = std::vector<std::byte>(1'600'000);  ///< of any range; untouched
  std::vector<StoredTensor> tensors;
  std::vector<StateTensor> held;
  StoredTensors stored;
};

std::vector<Slab> slabs_of(const Random& state) {
  std::vector<Slab> slabs;
  for (const Window& window : windows_of(state.held, state.stored))
    slabs.insert(slabs.end(), window.slabs.begin(), window.slabs.end());
  return slabs;
}

TEST(Slabs, CoverARanksElementsOnceAndInOrder) {
  for (unsigned seed = 1; seed < 9; ++seed) {
    const Random state(seed);
    const std::vector<Slab> slabs = slabs_of(state);
    std::size_t at = 0;
    for (std::size_t i = 0; i < state.held.size(); ++i)
      for (const StateRange& range : state.held[i].ranges)
        for (std::int64_t done = 0; state.stored[i] && done < range.values.elements(); ++at) {
          ASSERT_LT(at, slabs.size());
          const Slab& slab = slabs[at];
          ASSERT_EQ(slab.tensor, i);
          ASSERT_EQ(slab.first, range.first + done);
          ASSERT_EQ(static_cast<std::byte*>(slab.values.data) - state.memory.data(), done * size_of(range.values.type));
          const StoredTensor::Dataset& part = state.stored[i]->datasets.at(slab.dataset);
          done += slab.values.elements();
          ASSERT_TRUE(slab.first >= part.first && slab.first + slab.values.elements() <= part.first + part.count);
          ASSERT_EQ(slab.offset, part.offset + (slab.first - part.first) * size_of(state.stored[i]->type));
          ASSERT_EQ(slab.bytes, slab.values.elements() * size_of(state.stored[i]->type));
        }
    EXPECT_EQ(at, slabs.size());
  }
}

TEST(Windows, HoldAllSlabsEachWithinItsBlock) {
  for (unsigned seed = 1; seed < 9; ++seed) {
    const Random state(seed);
    const std::vector<Window> windows = windows_of(state.held, state.stored);
    std::vector<std::byte> memory(static_cast<std::size_t>(LargePages::bytes));
    for (const Window& window : windows) {
      ASSERT_EQ(window.at(memory, window.begin), memory.data() + window.begin % page_bytes);
      ASSERT_LE(window.end - window.begin / page_bytes * page_bytes, LargePages::bytes);
      ASSERT_LE((window.end + page_bytes - 1) / page_bytes - window.begin / page_bytes, LargePages::bytes / page_bytes);
      ASSERT_EQ(window.slabs.front().offset, window.begin);
      std::int64_t end = window.begin;
      for (const Slab& slab : window.slabs) {
        ASSERT_EQ(window.file, state.stored[slab.tensor]->slot == "model" ? 0u : 1u);
        ASSERT_GE(slab.offset, end);
        end = slab.end();
      }
      ASSERT_EQ(end, window.end);
    }
    EXPECT_LT(windows.size(), slabs_of(state).size());
  }
}

/// Bytes that encode their position.
char byte_at(std::int64_t offset) { return static_cast<char>(offset * 31 % 251); }

std::string text_of(std::int64_t bytes) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (std::int64_t i = 0; i < bytes; ++i) text[static_cast<std::size_t>(i)] = byte_at(i);
  return text;
}

/// The end of the last window of each file.
std::vector<std::int64_t> ends_of(const std::vector<Window>& windows) {
  std::vector<std::int64_t> ends(2, 0);
  for (const Window& window : windows) ends[window.file] = std::max(ends[window.file], window.end);
  return ends;
}

std::vector<PosixFile> open(const test::TemporaryFolder& folder, PosixFile::Mode mode) {
  std::vector<PosixFile> files;
  for (const char* name : payload_files) files.emplace_back(folder.path() / name, mode);
  return files;
}

TEST(Payload, IsReadInOrderFromWhereItLies) {
  for (unsigned seed = 1; seed < 5; ++seed) {
    const Random state(seed);
    const std::vector<Window> windows = windows_of(state.held, state.stored);
    const test::TemporaryFolder folder;
    for (std::size_t i = 0; i < 2; ++i) folder.write(payload_files[i], text_of(ends_of(windows)[i]));
    const std::vector<Slab> slabs = slabs_of(state);
    std::size_t taken = 0;
    read_payload(windows, open(folder, PosixFile::Mode::read_payload), [&](const Slab& slab, const std::byte* place) {
      ASSERT_EQ(slab.offset, slabs[taken].offset);
      ASSERT_EQ(slab.tensor, slabs[taken++].tensor);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(place) % 2, 0u);
      const auto* const bytes = reinterpret_cast<const char*>(place);
      for (std::int64_t i = 0; i < slab.bytes; ++i) ASSERT_EQ(bytes[i], byte_at(slab.offset + i));
    });
    EXPECT_EQ(taken, slabs.size());
  }
}

TEST(Payload, IsWrittenWhereItLiesAndNowhereElse) {
  for (unsigned seed : {1u, 2u, 4u, 5u}) {
    const Calls calls = seed % 2 == 0 ? Calls::in_tasks : Calls::on_calling_thread;
    const Random state(seed);
    const std::vector<Window> windows = windows_of(state.held, state.stored);
    const test::TemporaryFolder folder;
    std::string expected[2];
    for (std::size_t i = 0; i < 2; ++i) {
      expected[i].assign(static_cast<std::size_t>(ends_of(windows)[i]), 'x');
      folder.write(payload_files[i], expected[i]);
    }
    std::vector<PosixFile> files = open(folder, PosixFile::Mode::payload);
    write_payload(windows, files, calls, [&](const Slab& slab, std::byte* place) {
      std::string& own = expected[file_index(state.tensors[slab.tensor].slot)];
      for (std::int64_t i = 0; i < slab.bytes; ++i) {
        place[i] = static_cast<std::byte>(byte_at(slab.offset + i));
        own[static_cast<std::size_t>(slab.offset + i)] = byte_at(slab.offset + i);
      }
    });
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(read_text_file(folder.path() / payload_files[i]) == expected[i]);
  }
}

TEST(Payload, ThrowsWhatKeptAnyOfItFromTheDisk) {
  const Random state(1);
  const std::vector<Window> windows = windows_of(state.held, state.stored);
  for (const Calls calls : {Calls::in_tasks, Calls::on_calling_thread}) {
    const test::TemporaryFolder folder;
    for (const char* name : payload_files) folder.write(name, "");
    ::setenv("TESSERA_FAULT", "payload:0:enospc", 1);
    fault::arm(0);
    ::unsetenv("TESSERA_FAULT");
    fault::enter(fault::Phase::payload);
    std::vector<PosixFile> files = open(folder, PosixFile::Mode::payload);
    std::size_t filled = 0;
    try {
      write_payload(windows, files, calls, [&](const Slab&, std::byte*) { ++filled; });
      FAIL() << "a full disk was not noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::environment);
      EXPECT_NE(std::string(error.what()).find("model.h5: cannot be written: No space left on device"),
                std::string::npos);
    }
    EXPECT_LT(filled, slabs_of(state).size());
    fault::enter(fault::Phase::close);
  }
}

TEST(Payload, ThrowsWhereAFileEndsEarly) {
  const Random state(1);
  const std::vector<Window> windows = windows_of(state.held, state.stored);
  for (const std::int64_t kept : {std::int64_t{0}, ends_of(windows)[1] / 2, ends_of(windows)[1] - 1}) {
    const test::TemporaryFolder folder;
    folder.write(payload_files[0], text_of(ends_of(windows)[0]));
    folder.write(payload_files[1], text_of(kept));
    std::int64_t taken = 0;
    try {
      read_payload(windows, open(folder, PosixFile::Mode::read_payload), [&](const Slab& slab, const std::byte*) {
        if (state.tensors[slab.tensor].slot != "model") taken = slab.end();
      });
      ADD_FAILURE() << "a file of " << kept << " bytes was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::file);
      EXPECT_NE(std::string(error.what()).find("optimizer.h5: ends early"), std::string::npos);
    }
    EXPECT_LE(taken, kept);
  }
}

}  // namespace
}  // namespace tessera
