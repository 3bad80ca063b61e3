#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/step/quantizer_statistics.hpp"
#include "io/metrics/row_file.hpp"

namespace tessera {

inline constexpr const char* quantization_file = "quantization.jsonl";

/// A line as a JSON object without a newline. Histogram "log2": entry i counts values with floor(log2 |x|) = top - i,
/// the last entry all below; subnormal values count as 2^-127.
std::string to_json(std::int64_t step, const QuantizerLine& line);

/// What reports show of a line.
struct QuantizerFigures {
  std::int64_t step = 0;
  std::string matrix, role, side, format;
  double relative_error = 0, underflow = 0, saturated = 0;
  std::int64_t top = 0;               ///< exponent of the histogram's first entry
  std::vector<std::uint64_t> counts;  ///< the histogram
};

QuantizerFigures figures_of(std::int64_t step, const QuantizerLine& line);

/// Reads a quantization.jsonl; lines that are no rows are left out, and a missing file has none. Throws
/// Error{environment} if a file cannot be read.
std::vector<QuantizerFigures> read_quantization(const std::filesystem::path& path);

/// One role's figures in one step over its matrices and sides: the median, and the largest with its matrix.
struct RoleFigures {
  double median = 0, worst = 0;
  std::string matrix;
};
/// `field` of the lines of `role` in `step`; empty matrix: there are none.
RoleFigures figures_of_role(const std::vector<QuantizerFigures>& lines, std::int64_t step, std::string_view role,
                            double QuantizerFigures::*field);
inline constexpr const char* quantizer_roles[] = {"weight", "activation", "gradient"};
/// A figure's name in files, and as people read it.
struct QuantizerField {
  const char *key, *text;
  double QuantizerFigures::*field;
};
inline constexpr QuantizerField quantizer_fields[] = {
    {"relative_error", "relative error", &QuantizerFigures::relative_error},
    {"underflow", "underflow", &QuantizerFigures::underflow},
    {"saturated", "saturated", &QuantizerFigures::saturated}};
/// Steps that have lines, ascending.
std::vector<std::int64_t> steps_of(const std::vector<QuantizerFigures>& lines);

/// quantization.jsonl: the statistics of quantizers, a line each. Rank 0 alone writes it. Local.
class QuantizationLog {
 public:
  /// Opens it as RowFile does, which says what is dropped and thrown.
  QuantizationLog(const std::filesystem::path& path, std::int64_t step) : rows_(path, step) {}

  /// Writes the lines of a step at once; fails as RowFile::append().
  [[nodiscard]] Problems append(std::int64_t step, const std::vector<QuantizerLine>& lines);

 private:
  RowFile rows_;
};

}  // namespace tessera
