#include "io/data/marks_file.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "io/data/corpus.hpp"
#include "io/files/crc.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Marked = std::vector<std::uint8_t>;

/// Writes a header of 1024 bytes that begins with `head`, and then `rest`.
template <class T>
void write(const fs::path& path, const std::vector<char>& head, const std::vector<T>& rest) {
  std::vector<char> header(head);
  header.resize(1024);
  std::ofstream file(path, std::ios::binary);
  file.write(header.data(), std::ssize(header));
  file.write(reinterpret_cast<const char*>(rest.data()), std::ssize(rest) * static_cast<std::streamsize>(sizeof(T)));
}

template <class... T>
std::vector<char> packed(const T&... values) {
  std::vector<char> bytes;
  const auto add = [&](const auto& value) {
    const char* const begin = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), begin, begin + sizeof value);
  };
  (add(values), ...);
  return bytes;
}

class Marking : public ::testing::Test {
 protected:
  /// A token file, and its marks unless they are empty.
  fs::path make(const std::string& name, const std::vector<std::uint16_t>& tokens, const Marked& marks) {
    const fs::path path = folder_.path() / (name + ".bin");
    write(path, packed(std::int32_t{20240520}, std::int32_t{1}, static_cast<std::int32_t>(tokens.size())), tokens);
    if (!marks.empty())
      write(marks_beside(path),
            packed(std::int32_t{20261127}, std::int32_t{1}, static_cast<std::int64_t>(marks.size()),
                   crc32_by<0xEDB88320u>(std::as_bytes(std::span(tokens)))),
            marks);
    return path;
  }
  test::TemporaryFolder folder_;
};

TEST(Crc32, IsZlibs) {
  const std::string nine = "123456789";
  EXPECT_EQ(crc32_by<0xEDB88320u>(std::as_bytes(std::span(nine))), 0xCBF43926u);
  EXPECT_EQ(crc32_by<0xEDB88320u>({}), 0u);
}

TEST_F(Marking, StandBesideTheirTokens) {
  const fs::path first = make("a", {5, 6, 7}, {2, 0, 1}), second = make("b", {8, 9}, {3, 1});
  const Corpus corpus = Corpus::token_files({first, second}, WithMarks::required);
  ASSERT_NE(corpus.marks(), nullptr);
  std::vector<std::int32_t> marks(5);
  corpus.marks()->read(0, marks);
  EXPECT_EQ(marks, (std::vector<std::int32_t>{2, 0, 1, 3, 1}));
  const Corpus bare = Corpus::token_files({first, second});
  EXPECT_EQ(bare.marks(), nullptr);
  EXPECT_NE(bare.hash(), corpus.hash());
  // Each mark counts in the hash, and however files divide them.
  const fs::path whole = make("whole", {5, 6, 7, 8, 9}, {2, 0, 1, 3, 1});
  EXPECT_EQ(Corpus::token_files({whole}, WithMarks::if_there).hash(), corpus.hash());
  for (std::size_t i = 0; i < 5; ++i) {
    Marked other = {2, 0, 1, 3, 1};
    other[i] ^= 1;
    EXPECT_NE(Corpus::token_files({make("other", {5, 6, 7, 8, 9}, other)}, WithMarks::required).hash(), corpus.hash());
  }
}

TEST_F(Marking, AreThoseOfAllFilesOrOfNone) {
  const fs::path with = make("a", {5, 6, 7}, {2, 0, 1}), bare = make("b", {8, 9}, {});
  EXPECT_EQ(Corpus::token_files({bare}, WithMarks::if_there).marks(), nullptr);
  EXPECT_THROW(Corpus::token_files({with, bare}, WithMarks::if_there), Error);
  EXPECT_THROW(Corpus::token_files({with, bare}, WithMarks::required), Error);
  EXPECT_NO_THROW(Corpus::token_files({with, bare}));
}

TEST_F(Marking, OfOtherTokensAreRefused) {
  const fs::path path = make("a", {5, 6, 7}, {2, 0, 1});
  EXPECT_NO_THROW(Corpus::token_files({path}, WithMarks::required));
  const Marked good = {2, 0, 1};
  for (const std::vector<std::uint16_t>& others :
       {std::vector<std::uint16_t>{5, 6}, {5, 6, 8}, {6, 5, 7}, {5, 6, 7, 8}}) {
    make("a", others, {});
    EXPECT_THROW(Corpus::token_files({path}, WithMarks::required), Error);
  }
  make("a", {5, 6, 7}, {2, 0, 1});
  fs::resize_file(marks_beside(path), 1026);
  EXPECT_THROW(Corpus::token_files({path}, WithMarks::required), Error);
  fs::resize_file(marks_beside(path), 10);
  EXPECT_THROW(Corpus::token_files({path}, WithMarks::required), Error);
}

}  // namespace
}  // namespace tessera
