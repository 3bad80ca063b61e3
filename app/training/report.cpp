#include "app/training/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "app/training/summary.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

/// Every rank's value, on every rank.
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

std::string regions_text(const std::vector<Bar>& regions, double seconds) {
  std::string text = "time by region        min       avg       max  of the run\n";
  for (const Bar& bar : regions)
    text += fmt::format("  {:<10} {:>9.3f} {:>9.3f} {:>9.3f} s {:>6.1f}%\n", bar.name, bar.least, bar.mean, bar.most,
                        100 * bar.mean / seconds);
  return text + "  (waiting: for collectives that no work hid; part of the regions above)\n";
}

/// Waiting as a share of the time in which collectives were under way.
std::string exposed_text(const Bar& waiting, const Bar& busy) {
  if (busy.mean <= 0) return "";
  return fmt::format("communication was under way for {:.3f} s on average, {:.1f}% of it exposed\n", busy.mean,
                     100 * std::min(1.0, waiting.mean / busy.mean));
}

/// What was allocated, not what was planned.
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
  // Every rank passes through the same regions in the same order.
  for (const RegionTime& region : std::span(device.regions()).subspan(1))  // the first is no region
    report.regions.push_back(over_ranks(region.name, control, region.seconds));
  report.regions.push_back(over_ranks("waiting", control, device.communication().waited()));
  std::string& text = report.text;
  text = regions_text(report.regions, loop.seconds);
  text += exposed_text(report.regions.back(), over_ranks("communication", control, mesh.busy()));
  text += "collectives of one step, bytes that one rank receives\n";
  for (const CollectiveTotal& total : totals_of(plan.collectives))
    text += fmt::format("  {:<16} {:>10} {:>12} bytes\n", name_of(total.collective), counted(total.calls, "call"),
                        total.bytes);
  text += memory_text(device.memory(), control);
  if (plan.config.checkpoint.async)
    text += fmt::format("  {:<12} {:>12} bytes of the host\n", "snapshot", control.max(loop.snapshot_bytes));
  text += fmt::format("memory was asked for {} times after the second step\n", control.max(loop.late_allocations));
  return report;
}

}  // namespace tessera
