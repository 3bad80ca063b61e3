#include "core/config/sections/muon.hpp"

#include "core/config/config.hpp"

namespace tessera {

std::span<const Effect> MuonConfig::effects() {
  static constexpr Effect rows[] = {
      {"optimizer.muon", "optimizer.matrices", "with matrices: muon",
       [](const RunConfig& c) { return c.optimizer.matrices == MatrixRule::muon; }},
  };
  return rows;
}

}  // namespace tessera
