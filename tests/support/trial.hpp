#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/training/loop/training.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/all_steps.hpp"
#include "tests/support/contract.hpp"
#include "tests/support/delaying.hpp"
#include "tests/support/mpi.hpp"
#include "tests/support/small_runs.hpp"

/// Small training runs on all ranks of a test, without files.
namespace tessera::test {

/// Text with structure to learn: words from a small set, in an order by a fixed rule.
inline const std::vector<std::uint8_t>& text() {
  static const std::vector<std::uint8_t> bytes = [] {
    const std::string words[] = {"tile ", "mosaic ", "shard ", "stone ", "grout "};
    std::string all;
    for (std::uint64_t i = 0; all.size() < 6000; ++i) all += words[random_bits({5, 6}, i) % 5];
    return std::vector<std::uint8_t>(all.begin(), all.end());
  }();
  return bytes;
}

inline RowSink into(std::vector<MetricsRow>& rows) {
  return [&rows](const MetricsRow& row) {
    rows.push_back(row);
    return Problems();
  };
}

/// Trains with random delays before collectives, and with a trace unless the config says otherwise.
class Trial {
 public:
  /// Evaluates `held` windows at most, by the plan that `change` leaves.
  explicit Trial(const RunConfig& config, int delay_us = 300, std::int64_t held = 1000,
                 const std::function<void(RunPlan&)>& change = {})
      : plan_(changed(resolve(config, mpi().size(), mpi().rank()), change)),
        control_(mpi().control(std::chrono::seconds(300))),
        mesh_(mpi().mesh(device_, plan_.ranks, std::chrono::seconds(300))) {
    tokens_.append(std::span<const std::uint8_t>(text()));
    Problems problems;
    windows_ = Windows::split(tokens_.count(), config.model.seq_len, config.data.eval_fraction, problems);
    problems.raise();
    windows_.evaluation = std::min(windows_.evaluation, held);
    mesh_.wrap([&](std::unique_ptr<Communicator> one) {
      return recording(contract(delaying(std::move(one), 3, delay_us)), records_);
    });
    training_ = std::make_unique<Training>(device_, plan_, Batches(config, tokens_, windows_, plan_.ranks.world), mesh_,
                                           *control_, records_);
  }

  std::vector<MetricsRow> train() {
    std::vector<MetricsRow> rows;
    all_steps(*training_, into(rows));
    return rows;
  }

  Training& training() { return *training_; }
  /// Training's; none where ranks share a GPU, since which operation takes which staging memory depends on time there.
  std::int64_t late_allocations() const { return staged() ? 0 : training_->late_allocations(); }
  /// Whether ranks share a GPU, so that collectives go through host memory, each waiting.
  bool staged() const { return mesh_.world().name().find("staged(") != std::string::npos; }
  Device& device() { return device_; }
  const TokenStream& tokens() const { return tokens_; }
  const Windows& windows() const { return windows_; }
  const RunPlan& plan() const { return plan_; }
  Control& control() { return *control_; }
  const Mesh& mesh() const { return mesh_; }

 private:
  static RunPlan changed(RunPlan plan, const std::function<void(RunPlan&)>& change) {
    if (change) change(plan);
    return plan;
  }

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
