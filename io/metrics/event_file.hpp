#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// TensorBoard event file of a run's rows: one a start, beside metrics.jsonl. metrics.jsonl is the record, this a copy:
/// a failure to write is told once and ends nothing. Rank 0 alone writes it. Local.
class EventFile {
 public:
  /// Begins a file in `folder` that makes TensorBoard forget what earlier starts wrote after `step`, as metrics.jsonl
  /// does. `restart` orders the files of one second.
  EventFile(const std::filesystem::path& folder, std::int64_t step, std::int64_t restart);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// A scalar of each finite number of the row: loss, eval_loss, balance_loss, z_loss, grad_norm, lr, tokens_per_s,
  /// step_ms. Written at once.
  void append(const MetricsRow& row);

 private:
  void write(std::string_view event);

  std::filesystem::path path_;
  int file_ = -1;
};

/// CRC-32C (Castagnoli, RFC 3720, B.4).
std::uint32_t crc32c(std::string_view bytes);

}  // namespace tessera
