#pragma once
#include <cstdint>
#include <string>

#include "core/config/config.hpp"

namespace tessera {

/// Advice for a batch.global that is no multiple of `ranks` micro-batches: "use batch.micro 1, 2 or 4, or batch.global
/// 12 or 18".
std::string batch_advice(const BatchConfig& batch, std::int64_t ranks);

}  // namespace tessera
