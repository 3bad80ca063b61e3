#include "core/config/sections/reduce.hpp"

#include "core/config/config.hpp"

namespace tessera {

std::span<const Effect> ReduceConfig::effects() {
  static constexpr Effect rows[] = {
      {"reduce.bucket_mib", "sharding",
       "with sharding: optimizer: under full sharding gradients travel module by module",
       [](const RunConfig& c) { return c.sharding == Sharding::optimizer; }},
  };
  return rows;
}

std::span<const OtherName> ReduceConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"ddp_bucket_size bucket_cap_mb reduce_bucket_size", "reduce.bucket_mib", ""},
  };
  return rows;
}

}  // namespace tessera
