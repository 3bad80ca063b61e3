#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/metrics/metrics_log.hpp"
#include "io/report/svg_plot.hpp"

namespace tessera {

/// Contents of report.html.
struct RunReport {
  std::string name;
  std::vector<std::pair<std::string, std::string>> facts;  ///< label and text of a line
  std::vector<MetricsRow> rows;
  std::vector<Bar> regions;  ///< host time by region of the last start; empty while it runs
  std::vector<std::int64_t> saves;  ///< steps after which the run was saved
  std::string deck;                 ///< the resolved deck
};

/// report.html: a self-contained page without scripts, fonts or pictures from elsewhere. Shows loss, gradient norm,
/// throughput, learning rate and, with experts, expert load over the steps, with restarts and saves; the time by
/// region; and the deck. Pure.
std::string to_html(const RunReport& report);

/// The series of a value over the steps, from the rows that have one.
Series series_of(const std::vector<MetricsRow>& rows, const std::string& name,
                 const std::function<std::optional<double>(const MetricsRow&)>& value);

}  // namespace tessera
