#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "io/metrics/routing_row.hpp"
#include "io/metrics/row_file.hpp"

namespace tessera {

/// An evaluation set of a name, in a step's row.
struct EvaluatedSet {
  std::string name;
  float loss = 0;
  std::optional<double> bits_a_byte;  ///< bits that predict a byte of the set's text; absent if its bytes are unknown
};

/// Bits that predict a byte of text, by the mean loss (nats) of `tokens` tokens that stand for `bytes` bytes; empty if
/// these are unknown (0).
std::optional<double> bits_a_byte(float loss, std::int64_t tokens, std::int64_t bytes);

/// Metrics of one optimizer step. Losses are those of the forward before the step's update.
struct MetricsRow {
  std::int64_t step = 0;  ///< from 1
  float loss = 0;
  std::optional<float> eval_loss;      ///< if evaluated after this step; else the key is absent
  std::vector<EvaluatedSet> eval_sets;  ///< where sets have names: keys eval_loss/NAME and bits_a_byte/NAME
  float balance_loss = 0, z_loss = 0;  ///< means over MoE layers, without their coefficients; NaN without such layers
  float expert_load = std::numeric_limits<float>::quiet_NaN();  ///< tokens of the busiest expert / an even share, mean
                                                                ///< over MoE layers and micro-batches; NaN without
  float grad_norm = 0;                                          ///< before clipping
  float clip_coef = 1;
  float lr = 0;
  std::int64_t tokens = 0;  ///< tokens consumed so far
  std::optional<std::int64_t> targets;  ///< of the step, over which `loss` is a mean; the key is absent where all are
  double step_ms = 0;
  std::optional<double> save_blocked_ms;  ///< time for which saves blocked training before this step, if any did
  double tokens_per_s = 0;
  std::optional<double> mfu;    ///< model FLOPs utilisation, 0..1; null if the device's peak is unknown
  std::int64_t memory_bytes = 0;  ///< of one rank, planned and allocated
  std::int64_t ranks = 0;
  double time = 0;           ///< when the row was written: seconds since 1970, UTC
  /// Rows that arrived at a rank's experts in one layer / its even share, maximum over ranks and layers; the key is
  /// absent without expert parallelism.
  std::optional<double> expert_rows;
  /// The routing's unevenness: the busiest expert's share of a layer's slots over an even share, less 1; mean and
  /// largest of the layers. The keys are absent where no routing is recorded.
  std::optional<double> max_vio, max_vio_most;
  std::vector<RoutingRow> routing;  ///< the step's rows of routing.jsonl; not in metrics.jsonl
  /// Of the evaluation after it, the experts of slots, micro-batch by micro-batch and layer by layer; likewise.
  std::vector<std::int32_t> probed;
  bool skipped = false;      ///< no update: a gradient was not finite, or its norm was a spike
  bool spike = false;        ///< its norm was a spike (optimizer.skip_spikes)
  std::int64_t restart = 0;  ///< number of times that the run has been resumed
};

/// The row as one JSON object without a newline, keys in the order above. fp32 values are written as their shortest
/// decimal, times with three decimals, MFU with five; null if not finite.
std::string to_json(const MetricsRow& row);

/// Reads the rows of a metrics.jsonl, in its order. Lines that are not rows are left out; null becomes NaN. Throws
/// Error{environment} if the file cannot be read.
std::vector<MetricsRow> read_metrics(const std::filesystem::path& path);

inline constexpr const char* metrics_file = "metrics.jsonl";

/// metrics.jsonl, the record of a run: one line a step. Rank 0 alone writes it. Local.
class MetricsLog {
 public:
  /// Opens it as RowFile does, which says what is dropped and thrown.
  MetricsLog(const std::filesystem::path& path, std::int64_t step);

  /// Number of times that the run has been resumed, by its rows (dropped ones included).
  std::int64_t restarts() const { return rows_.restarts(); }
  std::int64_t reached() const { return rows_.reached(); }

  /// Writes the row at once; fails as RowFile::append() does.
  [[nodiscard]] Problems append(const MetricsRow& row);
  /// Replaces the last row, at once and whole. Throws Error{environment}, and the file keeps the row.
  void replace_last(const MetricsRow& row);

 private:
  RowFile rows_;
};

}  // namespace tessera
