#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"

namespace tessera {

/// Metrics of one optimizer step. Losses are those of the forward before the step's update.
struct MetricsRow {
  std::int64_t step = 0;  ///< from 1
  float loss = 0;
  std::optional<float> eval_loss;      ///< where evaluated; the key is absent elsewhere
  float balance_loss = 0, z_loss = 0;  ///< means over MoE layers, without their coefficients; NaN without such layers
  float expert_load = std::numeric_limits<float>::quiet_NaN();  ///< tokens of the busiest expert over an even share,
                                                                ///< mean over MoE layers and micro-batches; else NaN
  float grad_norm = 0;                                          ///< before clipping
  float clip_coef = 1;
  float lr = 0;
  std::int64_t tokens = 0;  ///< consumed so far
  double step_ms = 0;
  std::optional<double> save_blocked_ms;  ///< by which saves held up training before this step, where any did
  double tokens_per_s = 0;
  std::optional<double> mfu;    ///< a share; null where the peak is not known
  std::int64_t memory_bytes = 0;  ///< of one rank, planned and allocated
  std::int64_t ranks = 0;
  double time = 0;           ///< when the row was written: seconds since 1970, UTC
  /// The most rows that arrived at a rank's experts in one layer, over its even share; the key is absent without expert
  /// parallelism.
  std::optional<double> expert_rows;
  bool skipped = false;      ///< nothing was updated: a gradient was not finite, or
  bool spike = false;        ///< its norm was a spike (optimizer.skip_spikes)
  std::int64_t restart = 0;  ///< how often the run had been resumed
};

/// The row as one JSON object, without a newline, keys in the order above: fp32 values as their shortest decimal, times
/// to three digits behind the point, MFU to five, null where not finite.
std::string to_json(const MetricsRow& row);

/// The rows of a metrics.jsonl, in its order; lines that are none are left out, null is NaN. Throws Error{environment}
/// where the file cannot be read.
std::vector<MetricsRow> read_metrics(const std::filesystem::path& path);

inline constexpr const char* metrics_file = "metrics.jsonl";

/// metrics.jsonl, the record of a run: one line a step. Rank 0 alone writes it. Local.
class MetricsLog {
 public:
  /// Opens or makes the file and drops what a run restored at `step` will write again: rows of later steps, and an
  /// unfinished last line. Throws Error{environment} with path, cause and remedy.
  MetricsLog(const std::filesystem::path& path, std::int64_t step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// How often the run has been resumed, as its rows say (dropped ones included).
  std::int64_t restarts() const { return restarts_; }

  /// Writes the row at once. On failure (a full disk) the file keeps its whole rows and a problem (Exit::environment)
  /// is returned.
  [[nodiscard]] Problems append(const MetricsRow& row);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  std::int64_t bytes_ = 0;  // of whole rows
  std::int64_t restarts_ = 0;
};

}  // namespace tessera
