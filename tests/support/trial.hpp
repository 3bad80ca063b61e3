#pragma once
#include <memory>
#include <string>
#include <vector>

#include "app/training/training.hpp"
#include "core/comm/mpi.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/delaying.hpp"

/// Small training runs on all ranks of a test, without files.
namespace tessera::test {

inline Mpi& mpi() {
  static Mpi* const instance = new Mpi(nullptr, nullptr);  // outlives MPI_Finalize, so it must not be destroyed
  return *instance;
}

/// Text with structure to learn: words drawn from a few, by a fixed rule.
inline const std::vector<std::uint8_t>& text() {
  static const std::vector<std::uint8_t> bytes = [] {
    const std::string words[] = {"tile ", "mosaic ", "shard ", "stone ", "grout "};
    std::string all;
    for (std::uint64_t i = 0; all.size() < 6000; ++i) all += words[random_bits({5, 6}, i) % 5];
    return std::vector<std::uint8_t>(all.begin(), all.end());
  }();
  return bytes;
}

inline RunConfig base(Compute compute) {
  RunConfig config;
  config.run.seed = 42;
  config.run.steps = 4;
  config.model.layers = 2;
  config.model.hidden = 32;
  config.model.heads = 4;
  config.model.seq_len = 24;
  config.data.files = {"in memory"};
  config.batch = {12, 1};  // 12 sequences are shared evenly by 1, 2, 3 and 4 ranks
  config.eval = {0, 2};
  config.reduce.bucket_mib = 0.004;  // about a thousand elements, so that there are many groups
  config.optimizer.lr = 0.01;
  config.optimizer.warmup_steps = 2;
  config.precision.compute = compute;
  return config;
}

inline RunConfig dense(Compute compute) {
  RunConfig config = base(compute);
  config.model.tied_head = true;
  derive(config);
  return config;
}

inline RunConfig mixture(Compute compute) {
  RunConfig config = base(compute);
  config.model.norm = Norm::rms;
  config.model.position = Position::rotary;
  config.model.activation = Activation::swiglu;
  config.model.kv_heads = std::int64_t{2};
  config.model.ffn = std::int64_t{40};
  config.model.moe = MoeConfig{};
  config.model.moe->experts = 4;
  config.model.moe->top_k = 2;
  derive(config);
  return config;
}

inline std::vector<RunConfig> models() {
  return {dense(Compute::bf16), dense(Compute::fp32), mixture(Compute::bf16), mixture(Compute::fp32)};
}

inline RowSink into(std::vector<MetricsRow>& rows) {
  return [&rows](const MetricsRow& row) {
    rows.push_back(row);
    return Problems();
  };
}

/// Trains under random delays; with a trace unless the test wants none.
class Trial {
 public:
  /// Evaluates `held` windows at most.
  explicit Trial(const RunConfig& config, int delay_us = 300, std::int64_t held = 1000)
      : plan_(resolve(config, mpi().size(), mpi().rank())),
        control_(mpi().control(std::chrono::seconds(300))),
        mesh_(mpi().mesh(device_, plan_.ranks, std::chrono::seconds(300))) {
    tokens_.append(std::span<const std::uint8_t>(text()));
    Problems problems;
    windows_ = Windows::split(tokens_.count(), config.model.seq_len, config.data.eval_fraction, problems);
    problems.raise();
    windows_.evaluation = std::min(windows_.evaluation, held);
    mesh_.wrap([&](std::unique_ptr<Communicator> one) {
      return recording(delaying(std::move(one), 3, delay_us), records_);
    });
    training_ = std::make_unique<Training>(device_, plan_, Batches(config, tokens_, windows_, plan_.ranks.world), mesh_,
                                           *control_, records_);
  }

  std::vector<MetricsRow> train() {
    std::vector<MetricsRow> rows;
    training_->run(into(rows));
    return rows;
  }

  Training& training() { return *training_; }
  Device& device() { return device_; }
  const TokenStream& tokens() const { return tokens_; }
  const Windows& windows() const { return windows_; }
  const RunPlan& plan() const { return plan_; }
  Control& control() { return *control_; }
  const Mesh& mesh() const { return mesh_; }

 private:
  RunPlan plan_;
  Device device_;
  TokenStream tokens_;
  Windows windows_;
  std::vector<Record> records_;
  std::unique_ptr<Control> control_;
  Mesh mesh_;
  std::unique_ptr<Training> training_;
};

}  // namespace tessera::test
