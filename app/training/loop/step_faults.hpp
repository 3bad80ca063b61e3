#pragma once
#include <cstdint>

#include "core/step/engine.hpp"

namespace tessera {

/// Plans the fault that TESSERA_FAULT asks for in step `step`, if any, on this rank. Local.
void plan_fault(Engine& engine, std::int64_t step);

}  // namespace tessera
