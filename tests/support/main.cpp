// main() of every test program, under any number of MPI ranks: a failure on one rank is a failure of the program.
#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>

#include "kernels/base/runtime.hpp"
#include "tests/support/mpi.hpp"

namespace {

/// Test listener of ranks other than 0: prints failures only, each line with the rank.
class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("[r%d] %s:%d: %s\n", rank_, result.file_name() ? result.file_name() : "", result.line_number(),
                result.message());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Failed()) std::printf("[r%d] failed: %s.%s\n", rank_, test.test_suite_name(), test.name());
    std::fflush(stdout);
  }

  int rank_;
};

/// Fails a program that ran no test.
int run_tests() {
  const int failed = RUN_ALL_TESTS();
  if (GTEST_FLAG_GET(list_tests) || testing::UnitTest::GetInstance()->test_to_run_count() > 0) return failed;
  std::printf("no test was run\n");
  return 1;
}

/// Index of this rank's GPU: ranks of a host take its GPUs in turn. -1 in a host build.
int own_gpu() {
  const auto gpus = static_cast<int>(tessera::Runtime::gpus().size());
  MPI_Comm host;
  int local = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local);
  MPI_Comm_free(&host);
  return gpus > 0 ? local % gpus : -1;
}

/// The worst exit code of all ranks, since launchers treat different codes differently. Sleeps while it waits, so that
/// slower ranks have the cores.
int worst_of_all(int failed) {
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
  for (int done = 0; !done; usleep(200)) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleTest(&argc, argv);
  if (rank != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  int failed = 0;
  {
    const tessera::Runtime runtime(0, own_gpu());
    failed = worst_of_all(run_tests());
    if (tessera::test::before_finalize) tessera::test::before_finalize();
  }
  MPI_Finalize();
  return failed;
}
