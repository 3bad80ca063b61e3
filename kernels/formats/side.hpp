#pragma once
#include <cstdint>

namespace tessera {

/// Which copy of a matrix a product reads: scale blocks run along rows or along columns.
enum class Side : std::uint8_t { rowwise, columnwise };
constexpr const char* name_of(Side side) { return side == Side::rowwise ? "rowwise" : "columnwise"; }

}  // namespace tessera
