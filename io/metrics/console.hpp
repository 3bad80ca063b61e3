#pragma once
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// The figures of one step that the console shows.
struct ConsoleRow {
  std::int64_t step = 0, steps = 0;
  float loss = 0;
  std::optional<float> eval_loss;
  float norm = 0, lr = 0;
  double step_ms = 0;
  std::optional<double> mfu;  ///< share of the peak, 0..1; empty on unknown hardware
  double tokens_per_s = 0;
  std::int64_t memory_bytes = 0;
  double seconds_left = 0;
  bool skipped = false, spike = false;
  std::vector<std::pair<std::string, float>> eval_sets = {};  ///< losses by name, shown in the place of eval_loss
};

/// "step 120/5000 | loss 3.2171 | norm 1.02 | lr 3.0e-04 | 123 ms | 512k tok/s | 61.3 GiB | ETA 10:02"; "| eval 3.3012"
/// after the loss where evaluated, of several sets "| eval held 3.3012, code 2.9100"; "| 41% MFU" after the time where
/// known, "| skipped" or "| skipped: spike" at the end.
std::string to_line(const ConsoleRow& row);

/// A count with its unit: "1 step", "7 steps", "1,234 batches". `unit` is the singular.
std::string counted(std::int64_t count, std::string_view unit);

/// Figures as a row shows them, for other lines of the log: "512k"; "61.3 GiB"; "10:02", "3:10:02" or "2d 03:10:02".
std::string count_text(double count);
std::string bytes_text(std::int64_t bytes);
std::string time_text(double seconds);

/// Progress bar "[########            ] 40% | ETA 10:02", short enough for the next line to cover it.
std::string to_bar(std::int64_t step, std::int64_t steps, double seconds_left);

/// The console of a run: shows lines. On a terminal a progress bar may stand below the last line, until the next line
/// replaces it; elsewhere there are lines only, without colour. A closed pipe is not an error. Local.
class Console {
 public:
  /// `out` must outlive it. A terminal whose TERM is `dumb` counts as none.
  explicit Console(std::FILE* out);

  /// Each call flushes.
  void line(std::string_view text);
  void warning(std::string_view text);  ///< a line, in colour on a terminal
  void bar(std::string_view text);      ///< shown on a terminal only; empty: removes the bar

 private:
  enum class Kind { file, terminal };
  void write(std::string_view bytes);

  std::FILE* out_;
  Kind kind_;
};

}  // namespace tessera
