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
  std::vector<std::pair<std::string, std::string>> facts;  ///< a line each
  std::vector<MetricsRow> rows;
  std::vector<Bar> regions;  ///< host time of the last start; none while it runs
  std::vector<std::int64_t> saves;  ///< steps
  std::string deck;                 ///< the resolved one
};

/// One HTML page that needs nothing else: no script, no font, no picture from elsewhere. Loss, gradient norm,
/// throughput, learning rate and, of a mixture, expert load over the steps, with restarts and saves; the time by region
/// and the deck. Pure.
std::string to_html(const RunReport& report);

/// The series of a value, from the rows that have one.
Series series_of(const std::vector<MetricsRow>& rows, const std::string& name,
                 const std::function<std::optional<double>(const MetricsRow&)>& value);

}  // namespace tessera
