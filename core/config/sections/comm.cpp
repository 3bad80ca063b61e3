#include "core/config/sections/comm.hpp"

namespace tessera {

std::span<const OtherName> CommConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"init_timeout_seconds train_timeout_seconds distributed_timeout_minutes ddp_timeout", "comm.timeout_s",
       "seconds"},
  };
  return rows;
}

}  // namespace tessera
