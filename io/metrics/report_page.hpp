#pragma once
#include <string>
#include <utility>
#include <vector>

#include "io/metrics/metrics_log.hpp"
#include "io/metrics/svg_plot.hpp"

namespace tessera {

/// What a page tells of a run.
struct RunReport {
  std::string name;
  std::vector<std::pair<std::string, std::string>> facts;  ///< a line each
  std::vector<MetricsRow> rows;
  std::vector<Bar> regions;  ///< host time of the last start
};

/// One HTML page that needs nothing else: no script, no font, no picture from elsewhere. Loss, gradient norm,
/// throughput and learning rate over the steps, and the time by region. Pure.
std::string to_html(const RunReport& report);

}  // namespace tessera
