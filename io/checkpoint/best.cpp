#include "io/checkpoint/best.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/files/access.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

namespace fs = std::filesystem;

std::optional<fs::path> best_checkpoint(const fs::path& run) {
  if (entry_at(run / metrics_file) != Entry::file) return std::nullopt;
  std::map<std::int64_t, float> losses;
  for (const MetricsRow& row : read_metrics(run / metrics_file))
    losses.insert_or_assign(row.step, row.eval_loss.value_or(NAN));
  std::vector<StepFolder> evaluated = step_folders(run);
  std::erase_if(evaluated, [&](const StepFolder& folder) {
    return !losses.contains(folder.step) || !std::isfinite(losses[folder.step]);
  });
  std::ranges::stable_sort(evaluated, {}, [&](const StepFolder& folder) { return losses[folder.step]; });
  const auto best =
      std::ranges::find_if(evaluated, [](const StepFolder& folder) { return why_invalid(folder.path).empty(); });
  return best == evaluated.end() ? std::nullopt : std::optional(best->path);
}

fs::path chosen_step(const fs::path& path, Chosen chosen) {
  if (chosen == Chosen::newest) return path;
  if (entry_at(path) != Entry::folder) throw no_checkpoint(path);
  if (const std::optional<fs::path> best = best_checkpoint(path)) return *best;
  throw Error(Exit::file, step_folders(path).empty()
                              ? path.string() + ": is no run directory, among whose steps --best chooses"
                              : path.string() + ": holds no valid step that was evaluated, so --best cannot choose; "
                                                "`tessera checkpoint ls` lists its steps");
}

}  // namespace tessera
