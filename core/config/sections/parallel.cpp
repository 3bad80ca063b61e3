#include "core/config/sections/parallel.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/config.hpp"
#include "core/config/divisors.hpp"

namespace tessera {

double ParallelConfig::ample_room(const std::optional<MoeConfig>& moe) const {
  if (!moe || moe->top_k <= 0 || expert <= 0) return 1;
  const std::int64_t held = std::max<std::int64_t>(1, moe->experts / expert);
  return static_cast<double>(expert * std::min(moe->top_k, held)) / static_cast<double>(moe->top_k);
}

void ParallelConfig::derive(const RunConfig& config) { expert_room.fill(ample_room(config.model.moe)); }

void ParallelConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  const auto& moe = config.model.moe;
  if (expert > 1 && !moe)
    found.push_back({{"parallel.expert", "model.moe"},
                     fmt::format("{} ranks would hold the experts between them, and the model has none: use 1, or give "
                                 "model.moe",
                                 expert)});
  else if (moe && moe->experts > 0 && !divides(expert, moe->experts))
    found.push_back({{"parallel.expert", "model.moe.experts"},
                     fmt::format("{} does not divide {} experts, of which each rank of a group holds as many: use {}",
                                 expert, moe->experts, one_of(divisors(moe->experts)))});
}

void ParallelConfig::advise(const RunConfig& config, std::vector<Finding>& found) const {
  const double ample = ample_room(config.model.moe);
  if (expert > 1 && expert_room > ample)
    found.push_back(
        {{"parallel.expert_room", "parallel.expert", "model.moe.top_k"},
         fmt::format("{} is more than can arrive: {} is enough for any routing, and memory is planned for no more",
                     expert_room.get(), ample)});
}

std::span<const Effect> ParallelConfig::effects() {
  static constexpr Effect rows[] = {
      {"parallel.expert_room", "parallel.expert", "with parallel.expert above 1",
       [](const RunConfig& c) { return c.parallel.expert > 1; }},
  };
  return rows;
}

std::span<const OtherName> ParallelConfig::other_names() {
  constexpr const char* no_parallelism =
      "ranks share the data and, by parallel.expert, the experts: sharding full keeps a part of the weights on each";
  static constexpr OtherName rows[] = {
      {"parallelism", "parallel", ""},
      {"sharding_strategy hybrid_shard hybrid_sharding hsdp zero_hpz_partition_size hsdp_shard_size",
       "parallel.sharding_group", "all | host | a number of ranks"},
      {"expert_parallel_degree expert_model_parallel_size ep_size expert_parallel_size", "parallel.expert", ""},
      {"tensor_parallel_degree tensor_model_parallel_size tp_size pipeline_parallel_degree "
       "pipeline_model_parallel_size pp_size context_parallel_degree context_parallel_size cp_size sequence_parallel",
       "", no_parallelism},
  };
  return rows;
}

}  // namespace tessera
