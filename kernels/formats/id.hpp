#pragma once
#include <cstdint>

namespace tessera {

/// A format chosen at run time: one of the registry (registry.hpp) by its place there, or a described one, whose
/// description is in the id itself (described.hpp).
enum class FormatId : std::uint32_t {};

}  // namespace tessera
