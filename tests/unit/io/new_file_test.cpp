#include "io/files/new_file.hpp"
#include "io/files/text_file.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct NewFiles : ::testing::Test {
  const fs::path folder = fs::temp_directory_path() / ("tessera_new_file_" + std::to_string(::getpid()));
  const fs::path name = folder / "made.h5", beginning = folder / "made.h5.tmp";
  NewFiles() {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~NewFiles() override { fs::remove_all(folder); }
  void write(const fs::path& path, const char* text) { std::ofstream(path) << text; }
  template <class Work>
  void expect_error(Exit code, const Work& work) {
    try {
      work();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
    }
  }
};

TEST_F(NewFiles, AppearWholeUnderTheirName) {
  {
    NewFile file(name);
    EXPECT_EQ(file.path(), beginning);
    write(file.path(), "begun");
    file.hold().write(5, " ended", 6);
    EXPECT_FALSE(fs::exists(name));
    file.commit();
  }
  EXPECT_EQ(read_text_file(name), "begun ended");
  EXPECT_FALSE(fs::exists(beginning));
}

TEST_F(NewFiles, LeaveNothingWithoutACommit) {
  { const NewFile never_made(name); }
  {
    const NewFile begun(name);
    write(begun.path(), "begun");
  }
  EXPECT_TRUE(fs::is_empty(folder));
  {
    NewFile held(name);
    write(held.path(), "begun");
    held.hold();
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(NewFiles, AreMadeByOneProcess) {
  write(beginning, "another's");
  {
    PosixFile other(beginning, PosixFile::Mode::write);
    ASSERT_EQ(other.lock(), PosixFile::Lock::taken);
    expect_error(Exit::environment, [&] { NewFile file(name); });
    EXPECT_TRUE(fs::exists(beginning));
  }
  ::testing::internal::CaptureStderr();
  const NewFile after_it(name);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("did not reach its end"), std::string::npos);
  EXPECT_FALSE(fs::exists(beginning));
}

TEST_F(NewFiles, LeaveWhatAnotherHasMadeMeanwhile) {
  std::optional<PosixFile> other;
  {
    NewFile file(name);
    other.emplace(std::move(*PosixFile::exclusive(beginning)));
    other->lock();
    expect_error(Exit::environment, [&] { file.hold(); });
  }
  EXPECT_TRUE(other->named());
}

TEST_F(NewFiles, NeverReplace) {
  fs::create_symlink(folder / "nowhere", name);
  expect_error(Exit::file, [&] { NewFile file(name); });
  fs::remove(name);
  {
    NewFile file(name);
    write(file.path(), "mine");
    file.hold();
    write(name, "theirs");
    expect_error(Exit::file, [&] { file.commit(); });
  }
  EXPECT_EQ(read_text_file(name), "theirs");
  EXPECT_FALSE(fs::exists(beginning));
}

}  // namespace
}  // namespace tessera
