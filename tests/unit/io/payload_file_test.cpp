// Payload read past the system's cache and through it: the same bytes.
#include <gtest/gtest.h>

#include "io/checkpoint/payload_file.hpp"
#include "tests/support/page_cache.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t page = sizeof(Page), all = 300 * page + 1234;

std::string content() {
  std::string bytes(static_cast<std::size_t>(all), '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 % 251);
  return bytes;
}

class PayloadFiles : public ::testing::Test {
 protected:
  std::string read_once(const PayloadFile& file, std::int64_t offset, std::int64_t bytes, std::int64_t into = 0) {
    const std::span<std::byte> room = std::as_writable_bytes(std::span(room_)).subspan(static_cast<std::size_t>(into));
    const std::byte* const at = file.read_once(offset, bytes, room);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % page, static_cast<std::uintptr_t>(offset % page));
    return {reinterpret_cast<const char*>(at), static_cast<std::size_t>(bytes)};
  }

  const test::TemporaryFolder folder_;
  const std::string content_ = content();
  const fs::path path_ = folder_.write("payload", content_);

 private:
  std::vector<Page> room_{all / page + 4};
};

TEST_F(PayloadFiles, ReadTheSameFromDiskAndCache) {
  constexpr std::int64_t pieces[][2] = {
      {0, 1},       {0, page},          {page - 1, 2},      {5, 3 * page}, {7 * page, 100 * page}, {12'345, 700'001},
      {all - 1, 1}, {all - 1234, 1234}, {all - 9000, 9000}, {0, all}};
  const PayloadFile file(path_);
  EXPECT_EQ(file.size(), all);
  for (const auto& [offset, bytes] : pieces)
    for (const std::int64_t into : {std::int64_t{0}, std::int64_t{8}, page - 8}) {
      const std::string expected = content_.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
      test::drop_from_cache(path_);
      EXPECT_EQ(read_once(file, offset, bytes, into), expected) << offset << " + " << bytes << ", from the disk";
      read_text_file(path_);
      EXPECT_EQ(read_once(file, offset, bytes, into), expected) << offset << " + " << bytes << ", from the cache";
    }
}

TEST_F(PayloadFiles, LeaveTheCacheAsItIs) {
  const PayloadFile file(path_);
  test::drop_from_cache(path_);
  if (test::cached_pages(path_) > 0) GTEST_SKIP() << "these files are nowhere but in memory";
  read_once(file, 8 * page + 100, 64 * page);
  EXPECT_EQ(test::cached_pages(path_), 0);
}

TEST_F(PayloadFiles, ThatEndEarlySaySo) {
  const PayloadFile file(path_);
  test::drop_from_cache(path_);
  for (const std::int64_t end : {100 * page, 10 * page + 17}) {
    fs::resize_file(path_, static_cast<std::uintmax_t>(end));
    test::drop_from_cache(path_);
    EXPECT_EQ(read_once(file, 1, end - 1), content_.substr(1, static_cast<std::size_t>(end - 1)));
    try {
      read_once(file, end - 100, 101);
      ADD_FAILURE() << "read beyond the end at " << end;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::file);
      EXPECT_NE(std::string(error.what()).find("payload: ends early: it was truncated"), std::string::npos);
    }
  }
  EXPECT_THROW(PayloadFile(folder_.path() / "none"), Error);
}

TEST_F(PayloadFiles, WantRoom) {
  const PayloadFile file(path_);
  std::vector<Page> little(3);
  EXPECT_THROW(file.read_once(page - 1, 2 * page, std::as_writable_bytes(std::span(little)).subspan(1)), Error);
}

}  // namespace
}  // namespace tessera
