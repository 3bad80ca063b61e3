#include "core/config/config.hpp"

#include "core/config/each_section.hpp"

namespace tessera {

void derive(RunConfig& config) {
  each_section(config, [&]<class S>(S& section) {
    if constexpr (requires { &S::derive; }) section.derive(config);
  });
}

std::vector<Finding> check(const RunConfig& config) {
  std::vector<Finding> found;
  each_section(config, [&]<class S>(const S& section) {
    if constexpr (requires { &S::check; }) section.check(config, found);
  });
  return found;
}

std::vector<Finding> advise(const RunConfig& config) {
  std::vector<Finding> found;
  each_section(config, [&]<class S>(const S& section) {
    if constexpr (requires { &S::advise; }) section.advise(config, found);
  });
  return found;
}

std::span<const OtherName> RunConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"data_parallel_shard_degree data_parallel_replicate_degree fsdp zero zero_stage use_distributed_optimizer "
       "fsdp_config deepspeed use_fsdp zero_optimization", "sharding", "optimizer | full"},
  };
  return rows;
}

}  // namespace tessera
