#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/metrics/quantization_log.hpp"
#include "io/report/svg_plot.hpp"

namespace tessera {

/// Plots for report.html: of each role error, underflow and saturation over the steps, the median over matrices and the
/// worst. Empty without lines. Pure.
std::string quantization_plots(const std::vector<QuantizerFigures>& lines, const std::optional<Span>& span);
/// A table of the last step: each role's figures with the worst matrix by name, and the histogram of its values. Empty
/// without lines. Pure.
std::string quantization_table(const std::vector<QuantizerFigures>& lines);

/// The last step that all of these have lines of; empty if there is none.
std::optional<std::int64_t> last_common_step(const std::vector<const std::vector<QuantizerFigures>*>& runs);

}  // namespace tessera
