#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/training/loop/training.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/writer.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/all_steps.hpp"
#include "tests/support/mpi.hpp"
#include "tests/support/self_control.hpp"
#include "tests/support/small_runs.hpp"
#include "tests/support/temporary_folder.hpp"

/// Small training runs on all ranks of a test that save and load.
namespace tessera::test {

/// One folder for all ranks, removed by rank 0.
class SharedFolder {
 public:
  explicit SharedFolder(Control& control) : control_(control) {
    if (control.rank() == 0) mine_.emplace();
    path_ = control.broadcast(mine_ ? mine_->path().string() : "");
  }
  ~SharedFolder() { control_.max(0); }  // barrier: no rank reads any more
  const std::filesystem::path& path() const { return path_; }

 private:
  Control& control_;
  std::optional<TemporaryFolder> mine_;
  std::filesystem::path path_;
};

inline RunConfig config_of(ExpertWeights experts) {
  RunConfig config = test::mixture(Compute::bf16);
  config.run.steps = 6;
  config.model.vocab = std::int64_t{259};  // padded in memory
  config.model.moe->weights = experts;
  return config;
}

inline Origin origin_of(const RunConfig& config, ExpertWeights in_file) {
  Origin origin{"test", "0", "deck: text\n", model_fingerprint(config.model), 77, mpi().size(), in_file, "test",
                "here", "", "", "0", "none", "data", config.run.steps, config.optimizer, "", ""};
  return origin;
}

/// A training run on all ranks, or on this rank alone.
class Trial {
 public:
  explicit Trial(const RunConfig& config, bool alone = false)
      : plan_(alone ? resolve(config, 1, 0) : resolve(config, mpi().size(), mpi().rank())),
        control_(alone ? std::make_unique<test::SelfControl>() : mpi().control(std::chrono::seconds(300))),
        mesh_(alone ? self_mesh() : mpi().mesh(device_, plan_.ranks, std::chrono::seconds(300))) {
    for (std::uint64_t i = 0; i < 6000; ++i)
      text_.push_back(static_cast<std::uint8_t>(97 + random_bits({5, 6}, i) % 7));
    tokens_.append(std::span<const std::uint8_t>(text_));
    Problems problems;
    const Windows windows = Windows::split(tokens_.count(), config.model.seq_len, config.data.eval_fraction, problems);
    problems.raise();
    training_ = std::make_unique<Training>(device_, plan_, Batches(config, tokens_, windows, plan_.ranks.world), mesh_,
                                           *control_, records_);
    writer_ = std::make_unique<CheckpointWriter>(device_, *control_);
  }

  /// Runs to the end or to `stop`.
  std::vector<MetricsRow> train(std::int64_t stop = 1 << 30) {
    std::vector<MetricsRow> rows;
    const auto keep = [&](const MetricsRow& row) {
      rows.push_back(row);
      return Problems();
    };
    all_steps(*training_, keep, [stop](std::int64_t step) { return step < stop ? Proceed::go_on : Proceed::stop; });
    return rows;
  }
  std::string save(const std::filesystem::path& run, ExpertWeights in_file = ExpertWeights::single) {
    return save(run, origin_of(plan_.config, in_file));
  }
  std::string save(const std::filesystem::path& run, const Origin& origin) {
    return writer_->save(run, training_->state(), origin);
  }
  std::string save(const std::filesystem::path& run, ExpertWeights in_file, const hdf5::Parallel* parallel) {
    return CheckpointWriter(device_, *control_, parallel)
        .save(run, training_->state(), origin_of(plan_.config, in_file));
  }
  void load(const std::filesystem::path& folder, const hdf5::Parallel* parallel = nullptr) {
    load(Checkpoint(folder, *control_, parallel));
  }
  void load(const Checkpoint& checkpoint) {
    training_->restore([&](StateDict& state) { tessera::load(checkpoint, state, device_, *control_); });
  }
  Training& training() { return *training_; }
  Control& control() { return *control_; }
  Device& device() { return device_; }

 private:
  RunPlan plan_;
  Device device_;
  std::vector<std::uint8_t> text_;
  TokenStream tokens_;
  std::vector<Record> records_;
  std::unique_ptr<Control> control_;
  Mesh mesh_;
  std::unique_ptr<Training> training_;
  std::unique_ptr<CheckpointWriter> writer_;
};

inline constexpr ExpertWeights layouts[] = {ExpertWeights::single, ExpertWeights::discrete};

}  // namespace tessera::test
