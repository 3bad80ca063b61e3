#include "app/training/tell/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "app/training/tell/summary.hpp"
#include "core/device/timeline.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

/// Every rank's value, on every rank. Collective over the world.
std::vector<double> of_all_ranks(Control& control, double mine) {
  std::vector<double> values;
  for (const std::string& bytes : control.gather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
    values.push_back(0);
    std::memcpy(&values.back(), bytes.data(), sizeof mine);
  }
  return values;
}

Bar over_ranks(const char* name, Control& control, double mine) {
  const std::vector<double> values = of_all_ranks(control, mine);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return {name, *least, mean, *most};
}

/// A table of time by region.
struct RegionTable {
  std::string of;         ///< what was measured, for the title
  const char* unit;       ///< printed unit
  double units;           ///< units in a second
  std::vector<Bar> bars;  ///< in seconds
  double seconds = 0;     ///< total, of which lines give their share
  Bar waiting, communication;
};

/// Device time of a step, on average over the measured steps. Collective over the world.
RegionTable device_table(const DeviceTime& time, Control& control) {
  const auto a_step = [&](double seconds) { return seconds / static_cast<double>(time.steps); };
  RegionTable table{fmt::format("a step on the device, of {} measured", time.steps), "ms", 1e3, {}, 0, {}, {}};
  for (std::size_t i = 0; i < region_names; ++i)
    table.bars.push_back(over_ranks(name_of(static_cast<RegionName>(i)), control, a_step(time.regions[i])));
  table.seconds = over_ranks("", control, a_step(time.seconds)).mean;
  table.waiting = over_ranks("waiting", control, a_step(time.exposed));
  table.communication = over_ranks("communication", control, a_step(time.communication));
  return table;
}

/// Host time of all steps and of the time between them. Collective over the world.
RegionTable host_table(const Timeline& timeline, const Mesh& mesh, Control& control, double seconds) {
  std::array<double, region_names> mine{};
  for (const RegionTime& region : timeline.regions()) mine[static_cast<std::size_t>(region.name)] = region.seconds;
  RegionTable table{"of this start", "s", 1, {}, seconds, {}, over_ranks("communication", control, mesh.busy())};
  for (std::size_t i = 0; i < region_names; ++i)
    table.bars.push_back(over_ranks(name_of(static_cast<RegionName>(i)), control, mine[i]));
  table.waiting = table.bars[static_cast<std::size_t>(RegionName::waiting)];
  return table;
}

/// The regions that took any time, without `outside`.
std::vector<Bar> regions_that_took_time(std::vector<Bar> bars) {
  bars.erase(bars.begin());
  std::erase_if(bars, [](const Bar& bar) { return bar.most <= 0; });
  return bars;
}

std::string regions_text(const RegionTable& table) {
  std::string text = fmt::format("time by region            min       avg       max  {}\n", table.of);
  for (const Bar& bar : table.bars)
    text += fmt::format("  {:<15} {:>9.3f} {:>9.3f} {:>9.3f} {} {:>6.1f}%\n", bar.name, table.units * bar.least,
                        table.units * bar.mean, table.units * bar.most, table.unit, 100 * bar.mean / table.seconds);
  return text + "  (each without the regions inside it; waiting: for collectives that no work hid)\n";
}

/// Text of exposed communication: waiting as a share of the time in which collectives were under way.
std::string exposed_text(const RegionTable& table) {
  const double busy = table.communication.mean;
  if (busy <= 0) return "";
  return fmt::format("communication was under way for {:.3f} {} on average, {:.1f}% of it exposed\n",
                     table.units * busy, table.unit, 100 * std::min(1.0, table.waiting.mean / busy));
}

/// Text of memory by category as allocated, maximum over ranks.
std::string memory_text(const MemoryReport& memory, Control& control) {
  std::string text = "memory of one rank, the most that any allocated\n";
  for (std::size_t c = 0; c < memory.size(); ++c)
    text += fmt::format("  {:<12} {:>12} bytes\n", name_of(static_cast<Category>(c)), control.max(memory[c]));
  return text;
}

}  // namespace

ClosingReport closing_report(Device& device, const Mesh& mesh, const RunPlan& plan, Control& control,
                             const Loop& loop) {
  ClosingReport report;
  const DeviceTime time = time_of(device.timeline().on_device(), device.compute(), device.communication());
  const bool measured = control.max(time.steps == 0 ? 1 : 0) == 0;  // whether every rank has device times
  RegionTable table =
      measured ? device_table(time, control) : host_table(device.timeline(), mesh, control, loop.seconds);
  report.regions_of = table.of;
  report.regions = table.bars = regions_that_took_time(std::move(table.bars));
  std::string& text = report.text;
  text = regions_text(table) + exposed_text(table);
  const std::vector<CollectiveTotal> totals = totals_of(plan.collectives);
  text += "collectives of one step" +
          (totals.empty() ? ": none\n" : fmt::format(", bytes that one rank receives over {}\n", mesh.world().name()));
  for (const CollectiveTotal& total : totals)
    text += fmt::format("  {:<16} {:>10} {:>12} bytes\n", name_of(total.collective), counted(total.calls, "call"),
                        total.bytes);
  text += memory_text(device.memory(), control);
  if (plan.config.checkpoint.async)
    text += fmt::format("  {:<12} {:>12} bytes of the host\n", "snapshot", control.max(loop.snapshot_bytes));
  text += fmt::format("memory was asked for {} after the second step\n",
                      counted(control.max(loop.late_allocations), "time"));
  return report;
}

}  // namespace tessera
