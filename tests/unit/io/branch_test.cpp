#include "io/checkpoint/branch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "io/checkpoint/folder.hpp"
#include "io/files/fault.hpp"
#include "kernels/base/error.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// A run directory whose step folders hold one word each: `old`, or `new` if the branch wrote them.
class BranchTest : public ::testing::Test {
 protected:
  const fs::path run_ = fs::temp_directory_path() / ("tessera-branch-" + std::to_string(::getpid()));

  void SetUp() override { fresh(); }
  void TearDown() override {
    ::unsetenv("TESSERA_FAULT");
    fault::arm(0);
    fs::remove_all(run_);
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  fs::path folder(const fs::path& path, const std::string& word) const {
    fs::create_directory(run_ / path);
    write(run_ / path / "word", word);
    return run_ / path;
  }
  void fresh() const {
    fs::remove_all(run_);
    fs::create_directory(run_);
    for (int step : {20, 40, 60}) folder(step_folder(step), "old");
    write(run_ / "metrics.jsonl", "old rows");
  }
  void commit(std::int64_t step) const { commit_folder(folder("step_1.tmp.0", "new"), run_, step); }
  Names begin(std::int64_t kept, const fs::path& parent) const {
    const Names left = begin_branch(run_, parent, kept, {"metrics.jsonl", "routing.jsonl"});
    write(run_ / "metrics.jsonl", "new rows");
    return left;
  }
  /// Makes a branch from step 20 whose first checkpoint is of step `step`.
  void branch(std::int64_t step) const {
    begin(20, run_ / step_folder(20));
    commit(step);
    settle_branch(run_);
  }

  /// Contents of the run directory: every name with its word, or the text of a file.
  Names holds() const {
    Names all;
    for (const fs::directory_entry& entry : fs::directory_iterator(run_)) {
      const fs::path& path = entry.path();
      all.push_back(path.filename().string() + " " + read(entry.is_directory() ? path / "word" : path));
    }
    std::ranges::sort(all);
    return all;
  }
  const Names before_ = {"metrics.jsonl old rows", "step_00000020 old", "step_00000040 old", "step_00000060 old"};
  static Names after(std::int64_t step) {
    return {"abandoned-1_metrics.jsonl old rows", "abandoned-1_step_00000040 old", "abandoned-1_step_00000060 old",
            "metrics.jsonl new rows", "step_00000020 old", step_folder(step) + " new"};
  }
};

TEST_F(BranchTest, SetsLaterStepsAsideOnceItHasACheckpoint) {
  for (std::int64_t step : {30, 40, 60, 70}) {
    fresh();
    EXPECT_EQ(begin(20, run_ / step_folder(20)), Names({"step_00000040", "step_00000060"}));
    EXPECT_EQ(step_folders(run_).size(), 3);
    commit(step);
    settle_branch(run_);
    EXPECT_EQ(holds(), after(step)) << step;
    settle_branch(run_);
    EXPECT_EQ(holds(), after(step)) << step;
  }
}

TEST_F(BranchTest, TakesBackRecordsThatItHasBegun) {
  fresh();
  begin(20, run_ / step_folder(20));
  write(run_ / "routing.jsonl", "rows of the branch");
  settle_branch(run_);
  EXPECT_EQ(holds(), before_);
}

TEST_F(BranchTest, IsNoneWhereNoLaterStepIs) {
  EXPECT_EQ(begin_branch(run_, run_ / step_folder(60), 60, {"metrics.jsonl"}), Names());
  EXPECT_EQ(holds(), before_);
}

/// A process is killed when it enters a phase for the n-th time; then the next one starts.
TEST_F(BranchTest, IsWholeOrNotBegunWhereverItIsKilled) {
  for (std::int64_t step : {30, 40, 60})
    for (const auto& [phase, times] : {std::pair("branch", 3), std::pair("rename", 1), std::pair("aside", 2)})
      for (int n = 1; n <= times; ++n) {
        const std::string fault = std::string(phase) + ":0:kill:" + std::to_string(n);
        fresh();
        const bool comes = !(std::string(phase) == "aside" && step != 30 && n == 2);  // one is set aside by the commit
        EXPECT_EXIT(
            {
              ::setenv("TESSERA_FAULT", fault.c_str(), 1);
              fault::arm(0);
              begin(20, run_ / step_folder(20));
              fault::enter(fault::Phase::rename);
              commit(step);
              settle_branch(run_);
              _exit(0);
            },
            [&](int status) { return comes ? WIFSIGNALED(status) : WIFEXITED(status); }, "");
        remove_leftovers(run_);
        settle_branch(run_);
        EXPECT_EQ(holds(), std::string(phase) == "aside" ? after(step) : before_) << fault << ", step " << step;
      }
}

TEST_F(BranchTest, GivesBackANameThatItsFirstCheckpointWasToTake) {
  begin(20, run_ / step_folder(20));
  make_way(run_, step_folder(40));  // the process was killed here
  EXPECT_EQ(step_folders(run_).size(), 2);
  settle_branch(run_);
  EXPECT_EQ(holds(), before_);
}

TEST_F(BranchTest, IsTakenUpAgainAfterARenameThatFailed) {
  begin(20, run_ / step_folder(20));
  commit(30);
  ::setenv("TESSERA_FAULT", "aside:0:eio", 1);
  fault::arm(0);
  fault::enter(fault::Phase::aside);
  EXPECT_THROW(settle_branch(run_), Error);
  EXPECT_EQ(step_folders(run_).size(), 4);
  commit(40);
  settle_branch(run_);
  Names whole = after(30);
  whole.push_back("step_00000040 new");
  EXPECT_EQ(holds(), whole);
}

TEST_F(BranchTest, BranchesHaveNumbers) {
  branch(30);
  begin(20, run_ / step_folder(20));
  commit(50);
  settle_branch(run_);
  Names paths;
  for (const StepFolder& folder : abandoned_folders(run_)) paths.push_back(folder.path.filename().string());
  EXPECT_EQ(paths, Names({"abandoned-1_step_00000040", "abandoned-1_step_00000060", "abandoned-2_step_00000030"}));
  EXPECT_EQ(step_folders(run_).size(), 2);
}

TEST_F(BranchTest, FromWhatWasSetAsideHasItsRowsAndLeavesAllSteps) {
  branch(30);
  const Names left = begin_branch(run_, run_ / abandoned_name(1, step_folder(60)), -1, {"metrics.jsonl"});
  EXPECT_EQ(left, Names({"step_00000020", "step_00000030"}));
  EXPECT_EQ(read(run_ / "metrics.jsonl"), "old rows");
  settle_branch(run_);
  EXPECT_EQ(holds(), after(30));
}

TEST_F(BranchTest, FromElsewhereHasNoRows) {
  EXPECT_EQ(begin_branch(run_, "/elsewhere/step_00000050", -1, {"metrics.jsonl"}).size(), 3);
  EXPECT_EQ(read(run_ / "metrics.jsonl"), "");
}

// Each record of rows is set aside with the branch, and comes back if it has saved nothing. One that is not there is no
// matter.
TEST_F(BranchTest, KeepsEveryRecordOfRows) {
  const std::vector<std::string> records = {"metrics.jsonl", "routing.jsonl", "absent.jsonl"};
  for (const bool saved : {false, true}) {
    SCOPED_TRACE(test::shown(saved));
    fresh();
    write(run_ / "routing.jsonl", "old routing");
    begin_branch(run_, run_ / step_folder(20), 20, records);
    for (const char* name : {"metrics.jsonl", "routing.jsonl"}) write(run_ / name, "new");
    if (saved) commit(30);
    settle_branch(run_);
    EXPECT_EQ(read(run_ / "routing.jsonl"), saved ? "new" : "old routing");
    EXPECT_EQ(read(run_ / "metrics.jsonl"), saved ? "new" : "old rows");
    EXPECT_EQ(read(run_ / abandoned_name(1, "routing.jsonl")), saved ? "old routing" : "");
    EXPECT_FALSE(fs::exists(run_ / "absent.jsonl") || fs::exists(run_ / abandoned_name(1, "absent.jsonl")));
  }
}

TEST_F(BranchTest, RowsOfALostLineAreLeftOnce) {
  const Names records{"metrics.jsonl", "routing.jsonl"};
  EXPECT_EQ(leave_lost_line(run_, records), Names()) << "its steps are there";
  EXPECT_EQ(holds(), before_);
  for (const StepFolder& step : step_folders(run_)) fs::remove_all(step.path);
  EXPECT_EQ(leave_lost_line(run_, records), Names()) << "none was ever committed";
  write(run_ / "latest", step_folder(60) + "\n");
  write(run_ / abandoned_name(1, "routing.jsonl"), "of a branch");
  EXPECT_EQ(leave_lost_line(run_, records), Names{abandoned_name(2, "metrics.jsonl")});
  EXPECT_EQ(holds(), (Names{"abandoned-1_routing.jsonl of a branch", "abandoned-2_metrics.jsonl old rows"}));
  write(run_ / "metrics.jsonl", "new rows");
  EXPECT_EQ(leave_lost_line(run_, records), Names()) << "of a start that was killed before its first save";
}

// A branch that a version of one record began.
TEST_F(BranchTest, OfOneRecordIsUnderstood) {
  begin(20, run_ / step_folder(20));
  std::string text = read(run_ / "branch.json");
  const std::size_t at = text.find("\"records\"");
  ASSERT_NE(at, text.npos);
  text.replace(at, text.find(']', at) + 1 - at, "\"record\": \"metrics.jsonl\"");
  write(run_ / "branch.json", text);
  settle_branch(run_);
  EXPECT_EQ(read(run_ / "metrics.jsonl"), "old rows");
}

TEST_F(BranchTest, WhatSaysNothingOfItIsRefused) {
  for (const char* text : {"", "{}", "[]", R"({"number": "one"})"}) {
    write(run_ / "branch.json", text);
    EXPECT_THROW(settle_branch(run_), Error) << text;
  }
}

TEST(AbandonedName, IsReadAsItIsWritten) {
  const std::string name = abandoned_name(12, "step_00000040");
  const std::optional<AbandonedName> parts = abandoned(name);
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->branch, 12);
  EXPECT_EQ(parts->name, "step_00000040");
  for (const char* other : {"", "step_00000040", "abandoned-", "abandoned-_x", "abandoned-0_x", "abandoned-01_x",
                            "abandoned--1_x", "abandoned-1", "abandoned-99999999999999999999_x"})
    EXPECT_FALSE(abandoned(other)) << other;
}

}  // namespace
}  // namespace tessera
