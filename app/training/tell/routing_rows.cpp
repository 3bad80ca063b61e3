#include "app/training/tell/routing_rows.hpp"

#include <cmath>

namespace tessera {

std::vector<RoutingRow> routing_rows(const RunConfig& config, std::int64_t step, const StepReport& report) {
  std::vector<RoutingRow> rows;
  if (report.routing.empty()) return rows;
  const MoeConfig& moe = *config.model.moe;
  const double tokens = static_cast<double>(config.batch.global) * static_cast<double>(config.model.seq_len);
  const double most = moe.experts > 1 ? std::log(static_cast<double>(moe.experts)) : 0;
  auto words = report.routing.begin();
  auto bias = report.bias.begin();
  for (std::int64_t block = 0; block < config.model.layers; ++block) {
    if (!moe.blocks().contain(block)) continue;
    RoutingRow& row = rows.emplace_back();
    row.step = step;
    row.layer = block;
    row.load.assign(words, words + moe.experts);
    const double nats = static_cast<double>(words[RoutingRecord::entropy(moe.experts)]) * RoutingRecord::entropy_unit;
    row.scores_entropy = most > 0 ? nats / tokens / most : 0;
    row.choices = static_cast<std::uint64_t>(words[RoutingRecord::choices(moe.experts)]);
    if (moe.bias) row.bias.assign(bias, bias + moe.experts);
    const auto share = [&](std::int64_t word) {
      return static_cast<double>(words[word]) / (tokens * static_cast<double>(moe.top_k));
    };
    if (moe.capacity > 0) row.dropped = share(RoutingRecord::dropped(moe.experts));
    if (!config.routing.replay.empty()) row.differ = share(RoutingRecord::differ(moe.experts));
    row.skipped = report.clip.skip != 0;
    words += RoutingRecord::words(moe.experts);
    bias += moe.experts;
  }
  return rows;
}

}  // namespace tessera
