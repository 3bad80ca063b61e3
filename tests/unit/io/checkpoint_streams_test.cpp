// Bytes that go to and come from files on a thread of their own.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <set>
#include <thread>

#include "io/checkpoint/read_ahead.hpp"
#include "io/checkpoint/write_behind.hpp"
#include "io/files/fault.hpp"
#include "io/files/text_file.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Bytes that tell where they belong.
char byte_at(std::int64_t offset) { return static_cast<char>(offset * 31 % 251); }

std::string bytes_at(std::int64_t offset, std::int64_t count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  for (std::int64_t i = 0; i < count; ++i) bytes[static_cast<std::size_t>(i)] = byte_at(offset + i);
  return bytes;
}

/// As a save does it: in steps, each as far as there is room.
void put(WriteBehind& out, PosixFile& file, std::int64_t offset, std::int64_t count) {
  for (std::int64_t at = 0; at < count;) {
    const std::span<std::byte> room = out.room(file, offset + at, count - at);
    ASSERT_TRUE(std::ssize(room) == count - at || room.size() >= 4);
    ASSERT_EQ(std::ssize(room) % 4, std::ssize(room) == count - at ? count % 4 : 0);
    const bool as_there = (reinterpret_cast<std::int64_t>(room.data()) - offset - at) % page_bytes == 0;
    ASSERT_TRUE(as_there || (offset + at) % 4 != 0) << "no disk fetches it";
    for (std::size_t i = 0; i < room.size(); ++i)
      room[i] = static_cast<std::byte>(byte_at(offset + at + static_cast<std::int64_t>(i)));
    at += std::ssize(room);
  }
}

TEST(WriteBehind, WritesAllOfItWhereItBelongs) {
  const test::TemporaryFolder folder;
  PosixFile a(folder.write("a", ""), PosixFile::Mode::payload), b(folder.path() / "b", PosixFile::Mode::replace);
  WriteBehind out;
  constexpr std::int64_t sizes[] = {8, 24, 40'000, 0, 5'000'000, 16, 30'000'008, 7};
  std::int64_t at = 0;
  for (const std::int64_t size : sizes) {
    put(out, a, at, size);
    put(out, b, 3 * at, size);  // with holes
    at += size;
  }
  out.drain();
  EXPECT_EQ(read_text_file(folder.path() / "a"), bytes_at(0, at));
  const std::string holes = read_text_file(folder.path() / "b");
  at = 0;
  for (const std::int64_t size : sizes) {
    EXPECT_EQ(holes.substr(static_cast<std::size_t>(3 * at), static_cast<std::size_t>(size)), bytes_at(3 * at, size));
    at += size;
  }
  put(out, a, 0, 8);  // and again
  out.drain();
}

TEST(WriteBehind, ThrowsWhatKeptAnyOfItFromTheDisk) {
  const test::TemporaryFolder folder;
  ::setenv("TESSERA_FAULT", "payload:0:enospc", 1);
  fault::arm(0);
  ::unsetenv("TESSERA_FAULT");
  fault::enter(fault::Phase::payload);
  PosixFile file(folder.path() / "full", PosixFile::Mode::replace);
  WriteBehind out;
  put(out, file, 0, 50'000'000);  // more than there are blocks: nobody waits for ever
  try {
    out.drain();
    FAIL() << "a full disk was not noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::environment);
    EXPECT_NE(std::string(error.what()).find("full: cannot be written: No space left on device"), std::string::npos);
  }
  EXPECT_NE(read_text_file(folder.path() / "full"), bytes_at(0, 50'000'000));
}

TEST(WriteBehind, DropsWhatNobodyWaitsFor) {
  const test::TemporaryFolder folder;
  PosixFile file(folder.path() / "dropped", PosixFile::Mode::replace);
  { put(*std::make_unique<WriteBehind>(), file, 0, 1000); }
  EXPECT_EQ(file.size(), 0);
}

/// Element i of a tensor is i; reading `bad` fails.
class Counted final : public TensorSource {
 public:
  explicit Counted(int readers, std::int64_t bad = -1) : readers_(readers), bad_(bad) {}
  std::string name() const override { return "counted"; }
  const std::vector<StoredTensor>& tensors() const override { return none_; }
  bool has_digests() const override { return false; }
  void read(const StoredTensor&, std::int64_t first, std::int64_t count, void* to) const override {
    ++reads_;
    if (bad_ >= first && bad_ < first + count) throw Error(Exit::file, "unreadable");
    std::iota(static_cast<float*>(to), static_cast<float*>(to) + count, static_cast<float>(first));
  }
  int readers() const override { return readers_; }
  std::int64_t reads() const { return reads_; }

 private:
  std::vector<StoredTensor> none_;
  int readers_;
  std::int64_t bad_;
  mutable std::atomic<std::int64_t> reads_ = 0;
};

/// Ascending, of many sizes.
std::vector<ReadRequest> requests_of(const StoredTensor& tensor) {
  constexpr std::int64_t most = ReadAhead::most_bytes / 4;
  std::vector<ReadRequest> requests;
  std::int64_t first = 0;
  for (int round = 0; round < 12; ++round)
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{7}, most, most - 1, std::int64_t{1000}, most / 2}) {
      requests.push_back({&tensor, first, count});
      first += count;
    }
  return requests;
}

TEST(ReadAhead, GivesEveryRequestOnce) {
  const StoredTensor tensor;
  for (const int readers : {1, 8}) {
    const Counted source(readers);
    const std::vector<ReadRequest> requests = requests_of(tensor);
    ReadAhead values(source, requests);
    std::vector<int> given(requests.size());
    for (std::size_t n = 0; n < requests.size(); ++n) {
      const std::size_t index = values.next();
      ++given.at(index);
      ASSERT_EQ(values[index].first, requests[index].first);
      const auto* const at = reinterpret_cast<const float*>(values[index].values);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(at) % 8, 0u);
      for (std::int64_t i = 0; i < requests[index].count; ++i)
        ASSERT_EQ(at[i], static_cast<float>(requests[index].first + i));
    }
    EXPECT_EQ(given, std::vector<int>(requests.size(), 1));
  }
}

TEST(ReadAhead, ThrowsWhereAReadFailedAndNotBefore) {
  const StoredTensor tensor;
  const std::vector<ReadRequest> requests = requests_of(tensor);
  for (const int readers : {1, 8})
    for (const std::size_t bad : {std::size_t{0}, std::size_t{3}, requests.size() - 1}) {
      const Counted source(readers, requests[bad].first);
      ReadAhead values(source, requests);
      std::set<std::size_t> given;
      try {
        while (given.size() < requests.size()) given.insert(values.next());
        ADD_FAILURE() << "request " << bad << " was given";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "unreadable");
      }
      EXPECT_FALSE(given.contains(bad));
      EXPECT_TRUE(bad == 0 || given.contains(bad - 1));  // of the same part
      EXPECT_THROW(values.next(), Error) << bad;
    }
}

/// Once readers have gone as far as they may.
std::int64_t reads_at_rest(const Counted& source) {
  std::int64_t before = 0;
  for (std::int64_t now = 0; (now = source.reads()) == 0 || now != before; before = now)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return before;
}

TEST(ReadAhead, EndsWhereNobodyTakesAndReadsNoMoreThanItHasRoomFor) {
  const StoredTensor tensor;
  for (const int readers : {1, 8}) {
    const Counted source(readers);
    constexpr std::int64_t most = ReadAhead::most_bytes / 4;
    std::vector<ReadRequest> requests;
    for (std::int64_t n = 0; n < 200; ++n) requests.push_back({&tensor, n * most, most});
    {
      ReadAhead unused(source, requests);
      EXPECT_LE(reads_at_rest(source), 3 * (readers + 16)) << "a block holds three, and a reader has 16 blocks ahead";
    }
    const std::int64_t reads = source.reads();
    { const ReadAhead none(source, {}); }
    EXPECT_EQ(source.reads(), reads) << "nothing was asked for";
  }
}

}  // namespace
}  // namespace tessera
