#pragma once
#include <cstdint>

namespace tessera {

/// A format of the registry (registry.hpp), chosen at run time.
enum class FormatId : std::uint8_t {};

}  // namespace tessera
