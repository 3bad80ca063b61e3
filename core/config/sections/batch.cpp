#include "core/config/sections/batch.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/config/config.hpp"
#include "core/config/divisors.hpp"
#include "kernels/base/index.hpp"

namespace tessera {

void BatchConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  const std::int64_t set = std::max<std::int64_t>(1, config.parallel.expert);
  if (!divides(micro, global))
    found.push_back({{"batch.global", "batch.micro"},
                     fmt::format("{} is no multiple of micro {}: {}", global, micro, batch_advice(*this, set))});
}

std::string batch_advice(const BatchConfig& batch, std::int64_t ranks) {
  const bool shared = batch.global > 0 && batch.global % ranks == 0;
  const std::string micro = shared ? "use batch.micro " + one_of(divisors(batch.global / ranks)) + ", or "
                                   : "no batch.micro divides it: use ";
  if (batch.micro <= 0) return micro;  // a refused key, reported elsewhere
  const std::int64_t unit = ranks * batch.micro, below = batch.global / unit * unit;
  return micro + "batch.global " + one_of(below > 0 ? std::vector{below, below + unit} : std::vector{unit});
}

std::string any_ranks_advice(const BatchConfig& batch, std::int64_t ranks, std::int64_t expert) {
  std::vector<std::int64_t> micros = divisors(batch.global);
  std::erase_if(micros, [&](std::int64_t micro) {
    const std::int64_t micro_batches = batch.global / micro;
    return micro_batches < ranks || micro_batches % expert != 0;
  });
  return (micros.empty() ? "" : "batch.micro " + one_of(micros) + ", or ") +
         fmt::format("batch.global {}", round_up(ranks, expert) * batch.micro);
}

std::span<const OtherName> BatchConfig::other_names() {
  constexpr const char* accumulation =
      "a step accumulates batch.global / (ranks * batch.micro) micro-batches: choose batch.global and batch.micro";
  static constexpr OtherName rows[] = {
      {"global_batch_size total_batch_size train_batch_size effective_batch_size batch_size_global", "batch.global",
       "sequences, not tokens"},
      {"micro_batch_size local_batch_size per_device_train_batch_size device_batch_size micro_batch "
       "train_micro_batch_size_per_gpu", "batch.micro", ""},
      {"batch_size", "batch.global", "over all ranks; batch.micro is what one computes at once"},
      {"accumulate accumulation accumulate_grad_batches gradient_accumulation_steps grad_accum grad_accum_steps "
       "accumulation_steps gradient_accumulation accum_steps", "batch.micro", accumulation},
  };
  return rows;
}

}  // namespace tessera
