#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/metrics/metrics_log.hpp"
#include "io/metrics/quantization_log.hpp"

namespace tessera {

/// TensorBoard event file of a run's rows, one for each start, beside metrics.jsonl. metrics.jsonl is the record and
/// this a copy: a failed write is reported once and does not end the run. Rank 0 alone writes it. Local.
class EventFile {
 public:
  /// Begins a file in `folder`. It makes TensorBoard drop what earlier starts wrote for steps after `step`, as
  /// metrics.jsonl does. `restart` orders files that begin in the same second.
  EventFile(const std::filesystem::path& folder, std::int64_t step, std::int64_t restart);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Writes at once every column of to_json(row) but step and time as a scalar: numbers that are finite, and what is
  /// true or false as 1 or 0.
  void append(const MetricsRow& row);
  /// Writes the medians over matrices and sides: quantizer/<role>/relative_error and underflow.
  void append(std::int64_t step, const std::vector<QuantizerLine>& lines);

 private:
  void write(std::string_view event);

  std::filesystem::path path_;
  int file_ = -1;
};

/// CRC-32C (Castagnoli). Source: RFC 3720, B.4.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace tessera
