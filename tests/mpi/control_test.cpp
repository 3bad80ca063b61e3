#include "core/comm/control.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/comm/mpi.hpp"

namespace tessera {
namespace {

class ControlTest : public testing::Test {
 protected:
  int rank() const { return mpi.rank(); }
  int size() const { return mpi.size(); }
  bool last() const { return rank() == size() - 1; }

  Mpi mpi{nullptr, nullptr};
  std::unique_ptr<Control> control = mpi.control(std::chrono::seconds(300));
};

TEST_F(ControlTest, KnowsItsPlace) {
  EXPECT_EQ(control->rank(), rank());
  EXPECT_EQ(control->size(), size());
}

TEST_F(ControlTest, Max) {
  EXPECT_EQ(control->max(-5 - rank()), -5);
  EXPECT_EQ(control->max(std::int64_t{1} << (40 + rank())), std::int64_t{1} << (40 + size() - 1));
}

TEST_F(ControlTest, GatherKeepsEveryRanksBytes) {
  const auto text = [](int r) {
    return r == 1 ? std::string() : std::string(static_cast<std::size_t>(50000 * r + 3), char('a' + r)) + '\0';
  };
  const std::vector<std::string> all = control->gather(text(rank()));
  ASSERT_EQ(std::ssize(all), size());
  for (int r = 0; r < size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text(r)) << r;
}

TEST_F(ControlTest, BroadcastFromRoot) {
  const std::string root(100001, 'x');
  EXPECT_EQ(control->broadcast(rank() == 0 ? root : "ignored"), root);
  EXPECT_EQ(control->broadcast(rank() == 0 ? "" : "ignored"), "");
}

TEST_F(ControlTest, SumsInRankOrder) {
  const double values[] = {0.1, 1e16, -1e16, 0.3};  // any other order gives other bits
  double expected = values[0];
  for (int r = 1; r < size(); ++r) expected += values[r];
  EXPECT_EQ(control->sum_in_order(values[rank()]), expected);
}

TEST_F(ControlTest, SumsIntegers) {
  std::uint64_t sums[] = {1, static_cast<std::uint64_t>(rank()), ~std::uint64_t{0}};
  control->sum(sums, 3);
  const auto n = static_cast<std::uint64_t>(size());
  EXPECT_EQ(sums[0], n);
  EXPECT_EQ(sums[1], n * (n - 1) / 2);
  EXPECT_EQ(sums[2], std::uint64_t{0} - n);  // modulo 2^64
}

TEST_F(ControlTest, AgreesWhenNobodyHasProblems) { EXPECT_NO_THROW(control->agree({})); }

TEST_F(ControlTest, OneRanksProblemIsThrownByAll) {
  Problems problems;
  if (last()) {
    problems.add(Exit::file, "no such file\nreally");
    problems.add(Exit::deck, "second");
  }
  try {
    control->agree(problems);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::file);
    const std::string prefix = size() == 1 ? "" : "rank " + std::to_string(size() - 1) + ": ";
    EXPECT_EQ(error.what(), prefix + "no such file\nreally\nsecond");
  }
  EXPECT_NO_THROW(control->agree({}));  // the next vote is sound
}

TEST_F(ControlTest, TheLowestFailingRankSpeaks) {
  Problems problems;
  if (rank() != 0 || size() == 1) problems.add(static_cast<Exit>(rank() + 2), "mine is " + std::to_string(rank()));
  const int lowest = size() == 1 ? 0 : 1;
  try {
    control->agree(problems);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), lowest + 2);
    EXPECT_NE(std::string(error.what()).find("mine is " + std::to_string(lowest)), std::string::npos);
  }
}

TEST_F(ControlTest, WhatAllSayNeedsNoRank) {
  Problems problems;
  problems.add(Exit::deck, "unknown key");
  try {
    control->agree(problems);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::deck);
    EXPECT_STREQ(error.what(), "unknown key");
  }
}

TEST_F(ControlTest, ManyVotesInARow) {
  for (int i = 0; i < 500; ++i) ASSERT_EQ(control->max(i * 8 + rank()), i * 8 + size() - 1);
}

TEST(MpiProgram, KnowsWhereItRuns) {
  const Mpi mpi(nullptr, nullptr);
  EXPECT_EQ(mpi.local_rank(), mpi.rank()) << "the test's ranks share one host";
  EXPECT_FALSE(mpi.host().empty());
  EXPECT_FALSE(Mpi::version().empty());
  EXPECT_EQ(Mpi::version().find('\n'), std::string::npos);
}

/// Sets an environment variable for one scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

TEST(MpiProgram, SeesThatItWasStartedAsSeveralRunsOfOneRank) {
  const Mpi mpi(nullptr, nullptr);
  EXPECT_EQ(mpi.launch_mistake(), "");
  const Variable none("PMI_SIZE", nullptr), tasks("SLURM_STEP_NUM_TASKS", "4");
  const std::string mistake = mpi.launch_mistake();
  if (mpi.size() > 1) {
    EXPECT_EQ(mistake, "");
  } else {
    EXPECT_NE(mistake.find("4 separate runs"), std::string::npos) << mistake;
    const bool open_mpi = Mpi::version().starts_with("Open MPI");
    EXPECT_NE(mistake.find(open_mpi ? "srun --mpi=pmix" : "srun --mpi=pmi2"), std::string::npos) << mistake;
    const Variable one("PMI_SIZE", "1");
    EXPECT_EQ(mpi.launch_mistake(), "") << "mpiexec -n 1 within a step of four tasks is right";
  }
}

TEST(MpiProgram, SeesThatSrunGivesOpenMpiNoPmix) {
  const bool fails = Mpi::version().starts_with("Open MPI v4.");
  const Variable tasks("SLURM_STEP_NUM_TASKS", "4");
  {
    const Variable none("PMIX_NAMESPACE", nullptr);
    const std::string mistake = Mpi::start_mistake();
    EXPECT_EQ(mistake.find("srun --mpi=pmix") != std::string::npos, fails) << mistake;
    EXPECT_EQ(mistake.empty(), !fails) << mistake;
  }
  const Variable given("PMIX_NAMESPACE", "slurm.pmix.1.0");
  EXPECT_EQ(Mpi::start_mistake(), "");
}

}  // namespace
}  // namespace tessera
