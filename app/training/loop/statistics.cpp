#include "app/training/loop/statistics.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/base/attempt.hpp"

namespace tessera {

Statistics::Statistics(Device& device, const RunPlan& plan, Engine& engine, Mesh& mesh, Control& control)
    : engine_(engine),
      mesh_(mesh),
      control_(control),
      every_(plan.config.precision.statistics_every),
      measured_(device, plan) {}

void Statistics::before(std::int64_t step) {
  if (!due(step)) return;
  measured_.begin(engine_.stream(), engine_.fresh_state(), mesh_);
  engine_.show_next(&measured_);
}

/// Every field adds up but for the largest magnitude.
void Statistics::add_ranks(std::vector<QuantizerLine>& lines) {
  std::string mine(lines.size() * sizeof(std::uint64_t), '\0');
  std::vector<std::uint64_t> sums(lines.size() * QuantizerSums::words);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::memcpy(mine.data() + i * sizeof(std::uint64_t), &lines[i].sums.amax, sizeof(std::uint64_t));
    std::memcpy(&sums[i * QuantizerSums::words], &lines[i].sums, sizeof(QuantizerSums));
  }
  const std::vector<std::string> of_ranks = control_.gather(mine);
  control_.sum(sums.data(), static_cast<int>(sums.size()));  // mutation: statistics_of_one_rank
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::memcpy(static_cast<void*>(&lines[i].sums), &sums[i * QuantizerSums::words], sizeof(QuantizerSums));
    lines[i].sums.amax = 0;
    for (const std::string& of_rank : of_ranks) {
      std::uint64_t amax = 0;
      std::memcpy(&amax, of_rank.data() + i * sizeof amax, sizeof amax);
      lines[i].sums.amax = std::max(lines[i].sums.amax, amax);
    }
  }
}

bool Statistics::after(std::int64_t step) {
  if (!due(step)) return false;
  std::vector<QuantizerLine> lines = measured_.lines(engine_.stream());
  add_ranks(lines);
  Problems problems;
  if (control_.rank() == 0 && sink_) attempt(problems, [&] { problems = sink_(step, lines); });
  control_.agree(problems);
  return true;
}

}  // namespace tessera
