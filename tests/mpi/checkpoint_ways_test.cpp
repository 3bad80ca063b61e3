// Checkpoints by either way of writing and reading (checkpoint.io).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/snapshot.hpp"
#include "io/files/fault.hpp"
#include "io/files/text_file.hpp"
#include "tests/support/checkpoint_trial.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace test;

/// Contents of every file of a step, by name.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_text_file(entry.path());
  return files;
}

void expect_same(const fs::path& a, const fs::path& b) {
  if (mpi().rank() == 0) {
    const auto files = contents(a), others = contents(b);
    EXPECT_EQ(files.size(), 4u);
    for (const auto& [name, bytes] : others) {
      const std::string& own = files.at(name);
      const auto differs = std::ranges::mismatch(own, bytes).in1 - own.begin();
      EXPECT_TRUE(own == bytes) << a / name << " and " << b / name << " differ from byte " << differs << " of "
                                << own.size() << " and " << bytes.size();
    }
  }
}

RunConfig dense_config() {
  RunConfig config = config_of(ExpertWeights::single);
  config.model.moe.reset();
  derive(config);
  return config;
}

/// Saves in which a rank has pieces of all datasets, of some, or of none. By independent transfers and by collective
/// ones, in which ranks without pieces take part too.
TEST(Checkpoints, AreTheSameBytesByEitherWayOfWritingAndEachReadsTheOthers) {
  const std::map<std::string, std::string> hints[] = {
      {}, {{"collective_buffering", "true"}}, {{"romio_cb_write", "enable"}, {"romio_cb_read", "enable"}}};
  for (const RunConfig& config :
       {config_of(ExpertWeights::single), config_of(ExpertWeights::discrete), dense_config()}) {
    Trial run(config);
    run.train(2);
    const SharedFolder direct(run.control()), parallel(run.control()), back(run.control());
    const fs::path step = step_folder(2);
    for (ExpertWeights in_file : layouts) {
      SCOPED_TRACE(shown(in_file));
      const std::string digest = run.save(direct.path(), in_file);
      for (const auto& hint : hints) {
        // Hints of collective transfers in one case only: each call takes a time slice if ranks share cores.
        if (!hint.empty() && (config.model.moe || in_file == ExpertWeights::discrete)) continue;
        const hdf5::Parallel files(run.control(), hint);
        EXPECT_EQ(files.collective(hdf5::Parallel::Transfer::write), !hint.empty());
        EXPECT_EQ(run.save(parallel.path(), in_file, &files), digest);
        expect_same(parallel.path() / step, direct.path() / step);
        EXPECT_TRUE(Checkpoint(parallel.path() / step).verify().empty());
        Trial reads(config);
        const hdf5::Parallel own(reads.control(), hint);
        reads.load(direct.path() / step, &own);
        EXPECT_EQ(reads.save(back.path(), in_file), digest);
        reads.load(parallel.path() / step);
        EXPECT_EQ(reads.save(back.path(), in_file, &own), digest);
        expect_same(back.path() / step, direct.path() / step);
        run.control().max(0);
      }
    }
  }
}

/// One rank's disk is full: by collective transfers it still makes its calls, for which the others wait.
TEST(Checkpoints, OfARankThatFailsAreDroppedByAllRanksByEitherTransfer) {
  Trial run(config_of(ExpertWeights::single));
  run.train(1);
  const std::string failing = fmt::format("payload:{}:enospc", mpi().size() - 1);
  for (const char* const buffering : {"false", "true"}) {
    const SharedFolder folder(run.control());
    const hdf5::Parallel files(run.control(), {{"collective_buffering", buffering}});
    ::setenv("TESSERA_FAULT", failing.c_str(), 1);
    fault::arm(mpi().rank());
    ::unsetenv("TESSERA_FAULT");
    testing::internal::CaptureStderr();
    try {
      run.save(folder.path(), ExpertWeights::single, &files);
      ADD_FAILURE() << "it was saved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::environment);
      EXPECT_NE(std::string(error.what()).find("cannot be written: No space left on device"), std::string::npos)
          << error.what();
    }
    testing::internal::GetCapturedStderr();
    fault::arm(mpi().rank());
    run.control().max(0);
    EXPECT_TRUE(fs::is_empty(folder.path()));
    run.control().max(0);
    run.save(folder.path(), ExpertWeights::single, &files);
    EXPECT_TRUE(Checkpoint(folder.path() / step_folder(1)).verify().empty());
    run.control().max(0);
  }
}

TEST(Checkpoints, SavedByOneWayLoadByTheOtherOnOtherRanksAndLayouts) {
  Trial first(config_of(ExpertWeights::single));
  const SharedFolder folder(first.control());
  const hdf5::Parallel files(first.control(), {});
  first.train(3);
  for (ExpertWeights in_file : layouts) {
    SCOPED_TRACE(shown(in_file));
    const std::string digest = first.save(folder.path(), in_file, &files);
    for (ExpertWeights in_memory : layouts) {
      SCOPED_TRACE(shown(in_memory));
      Trial alone(config_of(in_memory), true), again(config_of(in_memory));
      const hdf5::Parallel of_one(alone.control(), {}), of_all(again.control(), {});
      alone.load(folder.path() / step_folder(3), &of_one);
      const test::TemporaryFolder own;
      EXPECT_EQ(alone.save(own.path(), in_memory, &of_one), digest);
      again.load(again.control().broadcast((own.path() / step_folder(3)).string()), &of_all);
      const SharedFolder other(again.control());
      EXPECT_EQ(again.save(other.path(), in_file), digest);
    }
  }
}

/// Steps that change the state while its snapshot is being written do not change the file.
TEST(Checkpoints, AreTheSameBytesWrittenWhileTrainingGoesOn) {
  for (const RunConfig& config :
       {config_of(ExpertWeights::single), config_of(ExpertWeights::discrete), dense_config()}) {
    Trial run(config);
    const SharedFolder waited(run.control()), beside(run.control());
    const Origin origin = origin_of(config, ExpertWeights::discrete);
    CheckpointWriter writer(run.device(), run.control());
    run.train(1);
    Snapshot snapshot(run.device(), run.training().state());
    for (std::int64_t step = 1; step < 4; step += 2) {
      const std::string digest = run.save(waited.path(), origin);
      // Each write is delayed by 50 ms, so test one save only.
      ::setenv("TESSERA_FAULT", step == 1 && !config.model.moe ? "payload:all:slow" : "", 1);
      fault::arm(mpi().rank());
      testing::internal::CaptureStderr();
      EXPECT_EQ(writer.poll(), std::nullopt) << "nothing is under way";
      EXPECT_EQ(writer.close(), std::nullopt) << "nothing is under way";
      writer.start(beside.path(), run.training().state(), origin, snapshot);
      EXPECT_TRUE(writer.under_way());
      run.train(step + 1);
      EXPECT_EQ(writer.poll(), std::nullopt);  // at least the manifest is still to be written
      run.train(step + 2);
      std::optional<std::string> beside_digest;
      if (step == 1)
        beside_digest = writer.close();
      else
        while (!(beside_digest = writer.poll())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(beside_digest, digest);
      testing::internal::GetCapturedStderr();
      EXPECT_FALSE(writer.under_way());
      expect_same(beside.path() / step_folder(step), waited.path() / step_folder(step));
      EXPECT_TRUE(Checkpoint(beside.path() / step_folder(step)).verify().empty());
      run.control().max(0);
    }
    ::unsetenv("TESSERA_FAULT");
    fault::arm(mpi().rank());
  }
}

TEST(Checkpoints, WithValuesThatAreNotFiniteAreDroppedWhileTrainingGoesOn) {
  Trial run(config_of(ExpertWeights::single));
  const SharedFolder folder(run.control());
  run.train(1);
  StateDict state = run.training().state();
  Snapshot snapshot(run.device(), state);
  CheckpointWriter writer(run.device(), run.control());
  const float wrong = std::numeric_limits<float>::infinity();
  for (const StateRange& range : state.tensors[0].ranges)
    if (range.first == 0 && range.values.elements() > 0)
      run.device().upload(run.device().compute(), range.values.flat(0, 1), &wrong);
  writer.start(folder.path(), state, origin_of(config_of(ExpertWeights::single), ExpertWeights::single), snapshot);
  try {
    writer.close();
    ADD_FAILURE() << "it was saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::numerical);
    EXPECT_NE(std::string(error.what()).find("1 of the "), std::string::npos) << error.what();
  }
  EXPECT_FALSE(writer.under_way());
  run.control().max(0);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  run.control().max(0);
}

/// Whether MPI-IO lists only those hints of an open file that it knows, as MPICH does; Open MPI repeats all given
/// hints.
bool known_hints_alone_are_listed(const fs::path& folder) {
  MPI_Info given = MPI_INFO_NULL, listed = MPI_INFO_NULL;
  MPI_Info_create(&given);
  MPI_Info_set(given, "no_such_hint", "1");
  MPI_File file = MPI_FILE_NULL;
  const std::string path = (folder / ("hints." + std::to_string(mpi().rank()))).string();
  EXPECT_EQ(MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_CREATE | MPI_MODE_WRONLY, given, &file), MPI_SUCCESS);
  EXPECT_EQ(MPI_File_get_info(file, &listed), MPI_SUCCESS);
  int length = 0, found = 0;
  MPI_Info_get_valuelen(listed, "no_such_hint", &length, &found);
  MPI_Info_free(&listed);
  MPI_File_close(&file);
  MPI_Info_free(&given);
  return found == 0;
}

TEST(Checkpoints, UnknownHintsAreToldOfOnce) {
  Trial run(config_of(ExpertWeights::single));
  const SharedFolder folder(run.control());
  const hdf5::Parallel files(run.control(), {{"cb_buffer_size", "1048576"}, {"no_such_hint", "1"}});
  testing::internal::CaptureStderr();
  for (const std::int64_t step : {1, 2}) {
    run.train(step);
    run.save(folder.path(), ExpertWeights::single, &files);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            mpi().rank() > 0 || !known_hints_alone_are_listed(folder.path())
                ? ""
                : "checkpoint.mpio_hints: the MPI-IO of this machine does not know no_such_hint and goes on without\n");
}

}  // namespace
}  // namespace tessera
