#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/metrics/metrics_log.hpp"
#include "io/metrics/quantization_log.hpp"
#include "io/metrics/run_record.hpp"
#include "io/report/svg_plot.hpp"

namespace tessera {

/// Contents of report.html.
struct RunReport {
  std::string name;       ///< of the run
  std::string directory;  ///< where it lies, which tells apart the pages of runs of one name
  std::vector<std::pair<std::string, std::string>> facts;  ///< label and text of a line
  std::vector<MetricsRow> rows;
  std::vector<RoutingRow> routing;    ///< empty where it is not recorded
  std::vector<RecordedStart> starts;  ///< the last one may have ended since by `end` of its progress alone
  std::vector<std::int64_t> kept;     ///< steps whose checkpoints are there
  std::string regions_of;             ///< whose time `regions` is: "of this start", "a step on the device, ..."
  std::vector<Bar> regions;           ///< time by region of the last start; empty while it runs
  std::string deck;                   ///< the resolved deck
  std::vector<QuantizerFigures> quantization = {};  ///< statistics of quantizers
  std::vector<KeptRow> kept_choices = {};  ///< of `routing`, by evaluation
};

/// report.html: a self-contained page without scripts, fonts or pictures from elsewhere. Shows the starts first. Loss,
/// gradient norm, throughput, learning rate and, with experts, their load and losses follow over the steps, with
/// restarts and saves. Then come the experts' routing, where it is recorded, the time by region, and the deck. Pure.
std::string to_html(const RunReport& report);

/// The steps of some runs' rows, for plots that begin and end alike; empty without rows.
std::optional<Span> span_of(const std::vector<const std::vector<MetricsRow>*>& runs);

/// The loss of the evaluation set of a name, if the row has it.
std::optional<double> loss_of(const MetricsRow& row, const std::string& set);

/// The series of a value over the steps, from the rows that have one.
Series series_of(const std::vector<MetricsRow>& rows, const std::string& name,
                 const std::function<std::optional<double>(const MetricsRow&)>& value);

}  // namespace tessera
