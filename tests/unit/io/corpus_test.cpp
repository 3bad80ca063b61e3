#include "io/data/corpus.hpp"
#include "io/data/file_set.hpp"
#include "io/data/mapped_file.hpp"
#include "io/data/no_text.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "kernels/digest/digest.hpp"
#include "tests/reference/digest.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {
namespace fs = std::filesystem;
using test::TemporaryFolder;

TEST(Pattern, MatchesWithinAComponent) {
  EXPECT_TRUE(fits("a.md", "a.md"));
  EXPECT_TRUE(fits("*.md", "a.md"));
  EXPECT_TRUE(fits("*", ".hidden"));
  EXPECT_TRUE(fits("?.md", "a.md"));
  EXPECT_TRUE(fits("*a*b*c", "xxaybabc"));
  EXPECT_TRUE(fits("./a/b", "a/b"));
  EXPECT_FALSE(fits("*.md", "a/b.md"));
  EXPECT_FALSE(fits("?.md", "ab.md"));
  EXPECT_FALSE(fits("?", "/"));
  EXPECT_FALSE(fits("*.md", "a.mdx"));
  EXPECT_FALSE(fits("*a*b*c", "xxaybabcd"));
  EXPECT_FALSE(fits("a.md", "A.md"));
}

// Only `?` and `*` are wildcards, and both count bytes.
TEST(Pattern, TakesAllElseAsItIs) {
  for (const char* name : {"a[1].md", "[a-z]", "[!a]", "a]", "a\\", "\\*", "a\\[b", "{a,b}", "~", "\xC3\xA9", "\xFF"})
    EXPECT_TRUE(fits(name, name)) << name;
  EXPECT_FALSE(fits("a[1].md", "a1.md"));
  EXPECT_FALSE(fits("[a-z]", "b"));
  EXPECT_FALSE(fits("\\*", "*"));
  EXPECT_TRUE(fits("a\\*", "a\\bc"));
  EXPECT_TRUE(fits("?[*]?", "\xFF[xy]\xC3"));
  EXPECT_TRUE(fits("??", "\xC3\xA9")) << "two bytes";
  EXPECT_FALSE(fits("?", "\xC3\xA9"));
  EXPECT_FALSE(fits(std::string_view("a\0b", 3), "a"));
}

TEST(Pattern, CrossesFolders) {
  EXPECT_TRUE(fits("**/*.md", "a.md"));
  EXPECT_TRUE(fits("**/*.md", "x/y/a.md"));
  EXPECT_TRUE(fits("x/**/a.md", "x/a.md"));
  EXPECT_TRUE(fits("x/**/a.md", "x/y/z/a.md"));
  EXPECT_TRUE(fits("**", "x/y"));
  EXPECT_TRUE(fits("**/y/**/z", "a/y/b/y/c/z"));
  EXPECT_FALSE(fits("x/**/a.md", "y/a.md"));
  EXPECT_FALSE(fits("x/*/a.md", "x/y/z/a.md"));
  EXPECT_FALSE(fits("**/*.md", "x/y/a.cpp"));
  EXPECT_FALSE(fits("**/y/**/z", "a/b/z"));
}

/// Throws the findings, a line each, as a run does.
std::vector<fs::path> listed(const FileSet& set) {
  std::vector<Finding> findings;
  std::vector<fs::path> files = list_files(set, findings);
  Problems problems;
  for (const Finding& finding : findings) problems.add(Exit::file, finding.keys.front() + ": " + finding.text);
  problems.raise();
  return files;
}
std::vector<std::string> names(const FileSet& set) {
  std::vector<std::string> out;
  for (const fs::path& path : listed(set)) out.push_back(path.lexically_relative(set.root).generic_string());
  return out;
}

/// The message and code of what f throws.
template <class F>
std::pair<Exit, std::string> thrown(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {Exit::ok, "nothing thrown"};
}
template <class F>
void expect_file_error(const F& f, std::initializer_list<std::string_view> mentions) {
  const auto [code, text] = thrown(f);
  EXPECT_EQ(code, Exit::file) << text;
  for (const std::string_view word : mentions) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

std::string no_text(const std::string& text) { return why_no_text("file", std::as_bytes(std::span(text))); }

TEST(FileSet, SortsByPathBytesAndTakesEachFileOnce) {
  const TemporaryFolder folder;
  for (const char* name : {"b.md", "a/z.md", "a.md", "a-b/x.md", "B.md", "c.txt", "\xC3\xA9.md"})
    folder.write(name, "x");
  EXPECT_EQ(names({folder.path(), {"**/*.md", "*.md", "b.md"}, {}}),
            (std::vector<std::string>{"B.md", "a-b/x.md", "a.md", "a/z.md", "b.md", "\xC3\xA9.md"}));
}

TEST(FileSet, LeavesOutHiddenBuildAndRunFolders) {
  const TemporaryFolder folder;
  for (const char* name : {".git/a", "build/a", "build-debug/a", "runs/demo/a", "runs/other/a", "src/.cache/a",
                           "src/build/a", "src/a", ".a", "builder"})
    folder.write(name, "x");
  EXPECT_EQ(names({folder.path(), {"**"}, folder.path() / "src/../runs/demo"}),
            (std::vector<std::string>{".a", "builder", "runs/other/a", "src/a"}));
  expect_file_error([&] { names({folder.path(), {"build/a"}, {}}); }, {"build/a", "no such file"});
}

TEST(FileSet, FollowsLinksToFilesButNotToFolders) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("real/a", "x");
  fs::create_symlink(file, folder.path() / "link");
  fs::create_directory_symlink(folder.path(), folder.path() / "real/loop");
  fs::create_symlink(folder.path() / "nowhere", folder.path() / "broken");
  EXPECT_EQ(names({folder.path(), {"**"}, {}}), (std::vector<std::string>{"link", "real/a"}));
}

TEST(FileSet, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  folder.write("a.md", "x");
  const fs::path gone = folder.path() / "gone";
  expect_file_error([&] { names({gone, {"**"}, {}}); }, {gone.string(), "No such file", "data.root"});
  expect_file_error([&] { names({folder.path() / "a.md", {"**"}, {}}); }, {"a.md", "data.root"});
  expect_file_error([&] { names({folder.path(), {"*.md", "b.md"}, {}}); }, {"b.md", "data.files"});
  expect_file_error([&] { names({folder.path(), {"*.cpp", "a.md", "*.h"}, {}}); },
                    {"*.cpp: fits no file below " + folder.path().string(), "*.h: fits no file"});
  expect_file_error([&] { names({folder.path(), {"*/../a.md"}, {}}); }, {"*/../a.md: has a '..' after a wildcard"});
  EXPECT_EQ(thrown([&] { names({folder.path(), {"*.cpp", "a.md", "b.md"}, {}}); }).second.find("data.files: a.md"),
            std::string::npos);
  // A folder that cannot be read is reported once, even if several patterns lead below it.
  const std::string text = thrown([&] { names({gone, {"*.md", "a", "**"}, {}}); }).second;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(FileSet, TakesAbsolutePathsAsTheyAre) {
  const TemporaryFolder folder, other;
  for (const char* name : {"b.txt", "d.txt", "build/x.txt"}) folder.write(name, "x");
  for (const char* name : {"a.txt", "c/1.txt", "c/build/2.txt", ".hidden/3.txt"}) other.write(name, "x");
  const auto at = [](const TemporaryFolder& place, const char* name) { return (place.path() / name).string(); };
  using Paths = std::vector<fs::path>;
  // Left out by patterns, and taken by name.
  EXPECT_EQ(listed({folder.path(), {at(folder, "build/x.txt"), at(other, ".hidden/3.txt")}, {}}),
            (Paths{at(other, ".hidden/3.txt"), at(folder, "build/x.txt")}));
  EXPECT_EQ(listed({folder.path(), {at(other, "**/*.txt")}, {}}), (Paths{at(other, "a.txt"), at(other, "c/1.txt")}));
  EXPECT_EQ(listed({folder.path(), {at(other, "?/1.*")}, {}}), Paths{at(other, "c/1.txt")});
  // The same files in the same order, each once, however patterns name them.
  EXPECT_EQ(listed({folder.path(), {at(folder, "d.txt"), at(folder, "*.txt"), "b.txt"}, {}}),
            listed({folder.path(), {"*.txt"}, {}}));
  // data.root counts for nothing where it names nothing.
  EXPECT_EQ(listed({folder.path() / "gone", {at(other, "a.txt")}, {}}), Paths{at(other, "a.txt")});
  expect_file_error([&] { listed({folder.path(), {at(other, "gone.txt")}, {}}); },
                    {"data.files: " + at(other, "gone.txt") + ": No such file"});
  expect_file_error([&] { listed({folder.path(), {at(other, "c")}, {}}); }, {at(other, "c") + ": is a folder"});
  expect_file_error([&] { listed({folder.path(), {at(other, "*.md")}, {}}); }, {"*.md: fits no file"});
  expect_file_error([&] { listed({folder.path(), {at(other, "gone/*.md")}, {}}); },
                    {"data.files", "gone cannot be read"});
}

TEST(FileSet, LeavesItsFolderByTwoDotsBeforeAWildcard) {
  const TemporaryFolder folder;
  for (const char* name : {"train/a", "held/1.txt", "held/2.txt", "held/3.md"}) folder.write(name, "x");
  const fs::path root = folder.path() / "train", held = fs::canonical(folder.path()) / "held";
  using Paths = std::vector<fs::path>;
  EXPECT_EQ(listed({root, {"../held/*.txt"}, {}}), (Paths{held / "1.txt", held / "2.txt"}));
  EXPECT_EQ(listed({root, {"../held/3.md"}, {}}), Paths{held / "3.md"});
  EXPECT_EQ(listed({root, {"../train/a"}, {}}), listed({root, {"a"}, {}}));
  expect_file_error([&] { listed({root, {"../held/4.md"}, {}}); }, {"4.md: No such file"});
}

TEST(FileSet, SaysWhatIsThereInsteadOfAFile) {
  const TemporaryFolder folder;
  folder.write("inside/a", "x");
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  fs::create_symlink("gone", folder.path() / "broken");
  fs::create_symlink("/dev/null", folder.path() / "null");
  fs::create_symlink("loop", folder.path() / "loop");
  for (const auto& [name, words] :
       {std::pair("pipe", "FIFO"), std::pair("broken", "is a broken link, to gone"), std::pair("inside", "is a folder"),
        std::pair("null", "is a device"), std::pair("loop", "link that leads nowhere")}) {
    const std::string text = name, absolute = (folder.path() / name).string();
    for (const std::string& pattern : {text, absolute, text.substr(0, 2) + "*", "inside/../" + text})
      expect_file_error([&] { listed({folder.path(), {pattern}, {}}); }, {text, words});
  }
}

TEST(NoText, NamesFormatsByTheirFirstBytes) {
  using namespace std::string_view_literals;
  const std::string rest = std::string(600, 'x') + std::string(1, '\0');
  for (const auto& [head, word] :
       {std::pair("\x1f\x8b\x08"sv, "gzip"), std::pair("\x28\xb5\x2f\xfd"sv, "zstd"),
        std::pair("\xfd"
                  "7zXZ\0"sv,
                  "xz"),
        std::pair("PK\x03\x04"sv, "zip"), std::pair("PAR1"sv, "Parquet"), std::pair("\x93NUMPY\x01\0"sv, "NumPy"),
        std::pair("\x89HDF\r\n\x1a\n"sv, "HDF5"), std::pair("\x88\xd8\x34\x01"sv, "llm.c"),
        std::pair("\xa1\xd9\x34\x01"sv, "llm.c"), std::pair("\x89PNG\r\n\x1a\n"sv, "PNG"),
        std::pair("%PDF-1.7"sv, "PDF"), std::pair("MMIDIDX\0"sv, "Megatron"), std::pair("BZh91AY&SY"sv, "bzip2"),
        std::pair("\x20\0\0\0\0\0\0\0{\""sv, "safetensors"), std::pair("\xff\xfeh\0i\0"sv, "UTF-16"),
        std::pair("h\0e\0l\0l\0o\0"sv, "binary"), std::pair("version https://git-lfs.github.com/spec/v1"sv, "git-lfs")})
    EXPECT_NE(no_text(std::string(head) + rest).find(word), std::string::npos)
        << word << ": " << no_text(std::string(head) + rest);
}

TEST(NoText, TakesTextOfAnyScriptAndRefusesOtherEncodings) {
  for (const char* text :
       {"", "a", "plain\ttext\r\n\f\x1b[0m", "\xEF\xBB\xBFmarked",
        "na\xC3\xAFve \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x99\x82", "BZh is a word", "PAR1 is one too", "RIFF"})
    EXPECT_EQ(no_text(text), "") << text;
  std::string latin, wide, big, mostly;
  for (int i = 0; i < 400; ++i) {
    latin += "sch\xF6n, ";
    wide += {static_cast<char>('a' + i % 26), '\0'};
    big += {'\0', static_cast<char>('a' + i % 26)};
    mostly += "words ";
  }
  EXPECT_NE(no_text(latin).find("WINDOWS-1252"), std::string::npos);
  EXPECT_NE(no_text(wide).find("UTF-16LE"), std::string::npos);
  EXPECT_NE(no_text(big).find("UTF-16BE"), std::string::npos);
  EXPECT_EQ(no_text(mostly + "\xF6 once"), "");
  EXPECT_NE(no_text(mostly + std::string(1, '\0')).find("a NUL at byte 2400"), std::string::npos);
}

TEST(NoText, KnowsMegatronsFileByItsIndex) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("a.bin", "just bytes");
  const auto why = [&] { return why_no_text(file, MappedFile(file).bytes()); };
  EXPECT_EQ(why(), "");
  folder.write("a.idx", "MMIDIDX");
  EXPECT_NE(why().find("Megatron"), std::string::npos);
}

TEST(FileSet, NamesTheFolderThatCannotBeReadIfItMustBe) {
  const TemporaryFolder folder;
  folder.write("open/a", "x");
  folder.write("closed/a", "x");
  fs::permissions(folder.path() / "closed", fs::perms::none);
  {
    const test::WithoutPrivileges user;
    EXPECT_EQ(names({folder.path(), {"open/*"}, {}}), std::vector<std::string>{"open/a"});
    expect_file_error([&] { names({folder.path(), {"**"}, {}}); }, {"closed", "Permission denied"});
  }
  fs::permissions(folder.path() / "closed", fs::perms::owner_all);
}

std::vector<std::int32_t> all_tokens(const Corpus& corpus) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.tokens().count()));
  corpus.tokens().read(0, ids);
  return ids;
}

/// Text of check_vocabulary's problems; empty if every token is below `vocabulary`.
std::string outside(const Corpus& corpus, std::int64_t vocabulary) {
  Problems problems;
  corpus.check_vocabulary(vocabulary, problems);
  EXPECT_LE(problems.list().size(), 1u);
  if (problems.empty()) return "";
  EXPECT_EQ(problems.list()[0].code, Exit::file);
  return problems.list()[0].text;
}

TEST(Corpus, JoinsTextWithoutSeparator) {
  const TemporaryFolder folder;
  folder.write("1.txt", "ab");
  folder.write("2.txt", "");
  folder.write("3.txt", std::string_view("\0\xFF\n", 3));
  const Corpus corpus = Corpus::text(listed({folder.path(), {"*.txt"}, {}}));
  EXPECT_EQ(all_tokens(corpus), (std::vector<std::int32_t>{'a', 'b', 0, 255, '\n'}));
  EXPECT_EQ(corpus.files(), 3);
  EXPECT_EQ(outside(corpus, 256), "");
  EXPECT_NE(outside(corpus, 255).find("byte 255"), std::string::npos);
}

TEST(Corpus, HashesContentAlone) {
  const TemporaryFolder folder;
  std::string text;
  std::vector<std::uint64_t> bits;
  for (int i = 0; i < 9001; ++i) {
    text.push_back(static_cast<char>(i * i % 251));
    bits.push_back(static_cast<std::uint8_t>(text.back()));
  }
  folder.write("whole", text);
  folder.write("parts/1", text.substr(0, 4000));
  folder.write("parts/2", text.substr(4000));
  const auto hash = [&](const char* pattern) { return Corpus::text(listed({folder.path(), {pattern}, {}})).hash(); };
  EXPECT_EQ(hash("whole"), mix64(reference::digest(bits, 0) ^ bits.size()));
  EXPECT_EQ(hash("parts/*"), hash("whole"));
  text[8000] ^= 1;
  folder.write("whole", text);
  EXPECT_NE(hash("whole"), hash("parts/*"));
  folder.write("whole", text.substr(0, 9000));
  folder.write("zeros/1", std::string(10, '\0'));
  folder.write("zeros/2", std::string(11, '\0'));
  EXPECT_NE(hash("zeros/1"), hash("zeros/2"));
}

TEST(Corpus, RefusesToBeEmptyOrUnreadable) {
  const TemporaryFolder folder;
  folder.write("a.txt", "");
  expect_file_error([&] { Corpus::text(listed({folder.path(), {"a.txt"}, {}})); }, {"a.txt", "empty"});
  folder.write("b.txt", "text");
  fs::permissions(folder.path() / "b.txt", fs::perms::none);
  const test::WithoutPrivileges user;
  expect_file_error([&] { Corpus::text(listed({folder.path(), {"b.txt"}, {}})); }, {"b.txt", "Permission denied"});
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + tokens;
}

TEST(TokenFiles, ReadBothWidthsOfLlmC) {
  const TemporaryFolder folder;
  folder.write("1.bin", llmc(20240520, 1, 3, bytes_of<std::uint16_t>({5, 50256, 65535})));
  folder.write("2.bin", llmc(20240801, 7, 2, bytes_of<std::uint32_t>({128000, 9})));
  folder.write("3.bin", llmc(20240520, 1, 0, ""));
  const Corpus corpus = Corpus::token_files(listed({folder.path(), {"*.bin"}, {}}));
  EXPECT_EQ(all_tokens(corpus), (std::vector<std::int32_t>{5, 50256, 65535, 128000, 9}));
  EXPECT_EQ(outside(corpus, 128001), "");
  EXPECT_NE(outside(corpus, 128000).find("at least 128001"), std::string::npos);
}

TEST(TokenFiles, HashLikeTheSameTokensOfAnotherWidth) {
  const TemporaryFolder folder;
  folder.write("narrow.bin", llmc(20240520, 1, 4, bytes_of<std::uint16_t>({1, 2, 200, 4})));
  folder.write("wide.bin", llmc(20240801, 7, 4, bytes_of<std::uint32_t>({1, 2, 200, 4})));
  folder.write("text", "\x01\x02\xC8\x04");
  const auto narrow = Corpus::token_files(listed({folder.path(), {"narrow.bin"}, {}})).hash();
  EXPECT_EQ(narrow, Corpus::token_files(listed({folder.path(), {"wide.bin"}, {}})).hash());
  EXPECT_EQ(narrow, Corpus::text(listed({folder.path(), {"text"}, {}})).hash());
}

TEST(TokenFiles, RefuseWhatIsNotOne) {
  const TemporaryFolder folder;
  const auto open = [&](const char* name) {
    return [&, name] { Corpus::token_files(listed({folder.path(), {name}, {}})); };
  };
  const std::string two = bytes_of<std::uint16_t>({1, 2});
  folder.write("text.bin", std::string(2000, 'x'));
  folder.write("short.bin", "abc");
  folder.write("header.bin", llmc(20240520, 1, 0, "").substr(0, 500));
  folder.write("version.bin", llmc(20240520, 2, 2, two));
  folder.write("truncated.bin", llmc(20240520, 1, 3, two));
  folder.write("longer.bin", llmc(20240520, 1, 1, two));
  folder.write("negative.bin", llmc(20240520, 1, -1, two));
  folder.write("none.bin", llmc(20240520, 1, 0, ""));
  expect_file_error(open("text.bin"), {"text.bin", "not a token file", "20240520", "data.kind: text"});
  expect_file_error(open("short.bin"), {"short.bin", "header"});
  expect_file_error(open("header.bin"), {"header.bin", "header"});
  expect_file_error(open("version.bin"), {"version.bin", "version 2"});
  expect_file_error(open("truncated.bin"), {"truncated.bin", "promises 3 tokens", "4 bytes"});
  expect_file_error(open("longer.bin"), {"longer.bin", "promises 1 tokens"});
  expect_file_error(open("negative.bin"), {"negative.bin", "promises -1"});
  expect_file_error(open("none.bin"), {"none.bin", "empty"});
}

std::string megatron_index(std::uint8_t type, std::int64_t width, const std::vector<std::int32_t>& sizes) {
  std::vector<std::int64_t> offsets, documents;
  std::int64_t at = 0;
  for (std::int32_t size : sizes) {
    offsets.push_back(at * width);
    documents.push_back(static_cast<std::int64_t>(documents.size()));
    at += size;
  }
  documents.push_back(static_cast<std::int64_t>(sizes.size()));
  return std::string("MMIDIDX\0\0", 9) + bytes_of<std::uint64_t>({1}) + static_cast<char>(type) +
         bytes_of<std::uint64_t>({sizes.size(), documents.size()}) + bytes_of(sizes) + bytes_of(offsets) +
         bytes_of(documents);
}

TEST(TokenFiles, ReadMegatronsPairs) {
  const TemporaryFolder folder;
  folder.write("short.bin", bytes_of<std::uint16_t>({7, 8, 50000}));
  folder.write("short.idx", megatron_index(8, 2, {1, 2}));
  folder.write("wide.bin", bytes_of<std::int32_t>({100000, 2}));
  folder.write("wide.idx", megatron_index(4, 4, {2}));
  EXPECT_EQ(all_tokens(Corpus::token_files(listed({folder.path(), {"*.bin"}, {}}))),
            (std::vector<std::int32_t>{7, 8, 50000, 100000, 2}));
}

TEST(TokenFiles, RefuseABrokenMegatronIndex) {
  const TemporaryFolder folder;
  folder.write("a.bin", bytes_of<std::uint16_t>({7, 8, 9}));
  const auto with = [&](const std::string& index) {
    folder.write("a.idx", index);
    return [&] { Corpus::token_files(listed({folder.path(), {"a.bin"}, {}})); };
  };
  const std::string good = megatron_index(8, 2, {1, 2});
  EXPECT_NO_THROW(with(good)());
  expect_file_error(with("nonsense"), {"a.idx", "MMIDIDX"});
  expect_file_error(with(good.substr(0, 20)), {"a.idx", "header"});
  expect_file_error(with(good.substr(0, 40)), {"a.idx", "2 sequences"});
  expect_file_error(with(megatron_index(6, 8, {1})), {"a.idx", "type 6"});
  expect_file_error(with(megatron_index(8, 2, {1, 3})), {"a.bin", "promises 4 tokens"});
  expect_file_error(with(megatron_index(8, 4, {1, 2})), {"a.idx", "sequence 1"});
}

TEST(Corpus, NamesTheFirstTokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  folder.write("1.bin", llmc(20240520, 1, 2, bytes_of<std::uint16_t>({5, 6})));
  folder.write("2.bin", llmc(20240801, 7, 3, bytes_of<std::uint32_t>({1, 4000000000u, 7})));
  const Corpus corpus = Corpus::token_files(listed({folder.path(), {"*.bin"}, {}}));
  EXPECT_EQ(outside(corpus, 4000000001), "");
  const std::string text = outside(corpus, 50257);
  for (const char* word : {"2.bin", "4000000000", "position 1", "50257"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(Corpus, MayBeMoved) {
  const TemporaryFolder folder;
  folder.write("a", "some text");
  Corpus first = Corpus::text(listed({folder.path(), {"a"}, {}}));
  const Corpus second = std::move(first);
  EXPECT_EQ(all_tokens(second).front(), 's');
}

}  // namespace
}  // namespace tessera
