#include "io/report/routing_plots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "io/report/heat_map.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_columns = 200;  // of a map of steps

HeatMap loads_of_last_step(const std::vector<RoutingRow>& rows) {
  const std::int64_t step = rows.back().step;
  HeatMap map{"Load by expert", fmt::format("over an even share, step {}", step), "expert", "0", "", {}, {}};
  for (const RoutingRow& row : rows) {
    if (row.step != step) continue;
    map.rows.push_back(std::to_string(row.layer));
    map.last = std::to_string(row.load.size() - 1);
    std::vector<double>& values = map.values.emplace_back();
    for (std::size_t e = 0; e < row.load.size(); ++e)
      values.push_back(row.share(e) * static_cast<double>(row.load.size()));
  }
  return map;
}

/// The busiest expert of each layer by steps, of which some share a column if they are many: the largest is shown.
HeatMap busiest_by_step(const std::vector<RoutingRow>& rows) {
  std::set<std::int64_t> steps, layers;
  for (const RoutingRow& row : rows) steps.insert(row.step), layers.insert(row.layer);
  HeatMap map{"Busiest expert by layer", "over an even share", "step", std::to_string(*steps.begin()),
              std::to_string(*steps.rbegin()), {}, {}};
  const std::size_t together = (steps.size() + most_columns - 1) / most_columns;
  const std::size_t columns = (steps.size() + together - 1) / together;
  std::map<std::int64_t, std::size_t> column, line;
  for (const std::int64_t step : steps) {
    const std::size_t number = column.size();
    column[step] = number / together;
  }
  for (const std::int64_t layer : layers) {
    const std::size_t number = line.size();
    line[layer] = number;
    map.rows.push_back(std::to_string(layer));
  }
  map.values.assign(layers.size(), std::vector<double>(columns, 0));
  for (const RoutingRow& row : rows) {
    double& value = map.values[line[row.layer]][column[row.step]];
    value = std::max(value, 1 + row.max_vio());
  }
  return map;
}

/// A line over the steps: a number made of all layers' rows of a step.
template <class F>
Series over_steps(const std::vector<RoutingRow>& rows, const std::string& name, const F& value) {
  Series series{name, {}, {}};
  for (auto begin = rows.begin(); begin != rows.end();) {
    const auto end = std::find_if(begin, rows.end(), [&](const RoutingRow& row) { return row.step != begin->step; });
    series.steps.push_back(static_cast<double>(begin->step));
    series.values.push_back(value(std::vector<RoutingRow>(begin, end)));
    begin = end;
  }
  return series;
}

/// What evaluations keep of the choices of those before: the mean of the layers, and the least.
std::string kept_plot(const std::vector<KeptRow>& rows, const Marks& marks, const std::optional<Span>& span) {
  if (rows.empty()) return "";
  Series mean{"mean", {}, {}}, least{"least", {}, {}};
  for (auto begin = rows.begin(); begin != rows.end();) {
    const auto end = std::find_if(begin, rows.end(), [&](const KeptRow& row) { return row.step != begin->step; });
    double sum = 0;
    for (auto row = begin; row != end; ++row) sum += row->kept;
    for (Series* series : {&mean, &least}) series->steps.push_back(static_cast<double>(begin->step));
    mean.values.push_back(sum / static_cast<double>(end - begin));
    least.values.push_back(std::min_element(begin, end, [](const KeptRow& a, const KeptRow& b) {
                             return a.kept < b.kept;
                           })->kept);
    begin = end;
  }
  return line_plot("Choices kept", "since the evaluation before", {mean, least}, Scale::linear, marks, span);
}

}  // namespace

std::string routing_plots(const std::vector<RoutingRow>& rows, const std::vector<KeptRow>& kept, const Marks& marks,
                          const std::optional<Span>& span) {
  if (rows.empty()) return "";
  using Rows = std::vector<RoutingRow>;
  const auto largest = [](const Rows& of) { return std::ranges::max(of, {}, &RoutingRow::max_vio).max_vio(); };
  const auto mean = [](const Rows& of) {
    double sum = 0;
    for (const RoutingRow& row : of) sum += row.max_vio();
    return sum / static_cast<double>(of.size());
  };
  std::string page = heat_map(loads_of_last_step(rows)) + heat_map(busiest_by_step(rows)) +
                     line_plot("Unevenness", "busiest share less 1",
                               {over_steps(rows, "largest", largest), over_steps(rows, "mean", mean)}, Scale::linear,
                               marks, span) +
                     kept_plot(kept, marks, span);
  if (rows.back().bias.empty()) return page;
  const auto low = [](const Rows& of) {
    double least = 0;
    for (const RoutingRow& row : of)
      for (const float b : row.bias) least = std::min(least, double{b});
    return least;
  };
  const auto high = [](const Rows& of) {
    double most = 0;
    for (const RoutingRow& row : of)
      for (const float b : row.bias) most = std::max(most, double{b});
    return most;
  };
  return page + line_plot("Selection bias", "range of all layers",
                          {over_steps(rows, "highest", high), over_steps(rows, "lowest", low)}, Scale::linear, marks,
                          span);
}

}  // namespace tessera
