// Payload read and written by direct I/O and through the page cache: the same bytes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "io/files/fault.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/large_pages.hpp"
#include "tests/support/page_cache.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t page = page_bytes, all = 300 * page + 1234;

std::string content() {
  std::string bytes(static_cast<std::size_t>(all), '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 % 251);
  return bytes;
}

class PayloadFiles : public ::testing::Test {
 protected:
  std::string read_pages(const PosixFile& file, std::int64_t offset, std::int64_t bytes) {
    file.read_pages(offset, offset + bytes, room_[0]);
    return {reinterpret_cast<const char*>(room_[0].data() + offset % page), static_cast<std::size_t>(bytes)};
  }

  const test::TemporaryFolder folder_;
  const std::string content_ = content();
  const fs::path path_ = folder_.write("payload", content_);

 private:
  const LargePages room_{1};
};

TEST_F(PayloadFiles, ReadTheSameFromDiskAndCache) {
  constexpr std::int64_t pieces[][2] = {
      {0, 1},       {0, page},          {page - 1, 2},      {5, 3 * page}, {7 * page, 100 * page}, {12'345, 700'001},
      {all - 1, 1}, {all - 1234, 1234}, {all - 9000, 9000}, {0, all}};
  const PosixFile file(path_, PosixFile::Mode::read_payload);
  EXPECT_EQ(file.size(), all);
  for (const auto& [offset, bytes] : pieces) {
    const std::string expected = content_.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    test::drop_from_cache(path_);
    EXPECT_EQ(read_pages(file, offset, bytes), expected) << offset << " + " << bytes << ", from the disk";
    read_text_file(path_);
    EXPECT_EQ(read_pages(file, offset, bytes), expected) << offset << " + " << bytes << ", from the cache";
  }
}

TEST_F(PayloadFiles, LeaveTheCacheAsItIs) {
  const PosixFile file(path_, PosixFile::Mode::read_payload);
  test::drop_from_cache(path_);
  if (test::cached_pages(path_) > 0) GTEST_SKIP() << "these files are nowhere but in memory";
  read_pages(file, 8 * page + 100, 64 * page);
  EXPECT_EQ(test::cached_pages(path_), 0);
}

TEST_F(PayloadFiles, ThatEndEarlySaySo) {
  const PosixFile file(path_, PosixFile::Mode::read_payload);
  test::drop_from_cache(path_);
  for (const std::int64_t end : {100 * page, 10 * page + 17}) {
    fs::resize_file(path_, static_cast<std::uintmax_t>(end));
    test::drop_from_cache(path_);
    EXPECT_EQ(read_pages(file, 1, end - 1), content_.substr(1, static_cast<std::size_t>(end - 1)));
    try {
      read_pages(file, end - 100, 101);
      ADD_FAILURE() << "read beyond the end at " << end;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::file);
      EXPECT_NE(std::string(error.what()).find("payload: ends early: it was truncated"), std::string::npos);
    }
  }
  EXPECT_THROW(PosixFile(folder_.path() / "none", PosixFile::Mode::read_payload), Error);
}

TEST_F(PayloadFiles, WantRoom) {
  const PosixFile file(path_, PosixFile::Mode::read_payload);
  const LargePages room(1);
  EXPECT_THROW(file.read_pages(page - 1, 3 * page + 1, room[0].first(3 * page)), Error);
}

class PayloadWrites : public PayloadFiles {
 protected:
  /// Writes new bytes to a part of the file, from memory whose alignment differs from the file's by `shift`.
  void write(PosixFile& file, std::int64_t offset, std::int64_t bytes, std::int64_t shift = 0) {
    const LargePages memory(1);
    std::byte* const from = memory[0].data() + offset % page + shift;
    for (std::int64_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>((offset + i) % 241);
    file.write(offset, from, bytes);
  }
  std::string written(std::string before, std::int64_t offset, std::int64_t bytes) const {
    for (std::int64_t i = offset; i < offset + bytes; ++i)
      before[static_cast<std::size_t>(i)] = static_cast<char>(i % 241);
    return before;
  }
  /// Arms a fault for the next writes of payload.
  static void arm(const char* fault) {
    ::setenv("TESSERA_FAULT", fault, 1);
    fault::arm(0);
    ::unsetenv("TESSERA_FAULT");
    fault::enter(fault::Phase::payload);
  }
};

TEST_F(PayloadWrites, AreTheSamePastTheCacheAndThroughIt) {
  constexpr std::int64_t pieces[][2] = {{0, 1},
                                        {0, 16 * page},
                                        {0, 100 * page},
                                        {5, 20 * page},
                                        {7 * page, 100 * page},
                                        {12'345, 700'001},
                                        {page - 1, 17 * page + 2},
                                        {all - 1234, 1234},
                                        {0, all}};
  for (const auto& [offset, bytes] : pieces)
    for (const std::int64_t shift : {0, 8}) {
      folder_.write("payload", content_);
      PosixFile file(path_, PosixFile::Mode::payload);
      write(file, offset, bytes, shift);
      EXPECT_EQ(read_text_file(path_), written(content_, offset, bytes)) << offset << " + " << bytes;
      file.sync();
      test::drop_from_cache(path_);
      EXPECT_EQ(read_text_file(path_), written(content_, offset, bytes)) << offset << " + " << bytes << ", on the disk";
    }
}

TEST_F(PayloadWrites, LeaveTheCacheAsItIsButForTheirEnds) {
  PosixFile file(path_, PosixFile::Mode::payload);
  test::drop_from_cache(path_);
  if (test::cached_pages(path_) > 0) GTEST_SKIP() << "these files are nowhere but in memory";
  write(file, 8 * page, 64 * page);
  EXPECT_EQ(test::cached_pages(path_), 0);
  write(file, 100 * page + 4, 64 * page);
  EXPECT_LE(test::cached_pages(path_), 2);
}

TEST_F(PayloadWrites, ByNeighboursMayMeetWithinAPage) {
  const std::int64_t ends[] = {0, 30 * page + 100, 60 * page + 4000, 61 * page + 8, 200 * page + 4, all};
  {
    std::vector<std::jthread> neighbours;
    for (int i = 0; i < 5; ++i)
      neighbours.emplace_back([&, i] {
        PosixFile file(path_, PosixFile::Mode::payload);
        write(file, ends[i], ends[i + 1] - ends[i]);
        file.sync();
      });
  }
  test::drop_from_cache(path_);
  EXPECT_EQ(read_text_file(path_), written(content_, 0, all));
}

TEST_F(PayloadWrites, GoOnAfterHalfOfThemAndAfterAnInterruption) {
  for (const char* fault : {"payload:0:short", "payload:0:eintr"}) {
    folder_.write("payload", content_);
    PosixFile file(path_, PosixFile::Mode::payload);
    arm(fault);
    write(file, 8 * page, 65 * page);  // half of it ends within a page
    EXPECT_EQ(read_text_file(path_), written(content_, 8 * page, 65 * page)) << fault;
  }
}

TEST_F(PayloadWrites, ThatFailSaySo) {
  PosixFile file(path_, PosixFile::Mode::payload);
  arm("payload:0:eio");
  try {
    write(file, 0, 100 * page);
    ADD_FAILURE() << "nothing was noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::environment);
    EXPECT_NE(std::string(error.what()).find("payload: cannot be written: Input/output error"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
