#pragma once
#include <string>

namespace tessera {

/// The instructions of this CPU with which the library of products computes, as its environment allows: "avx512_core".
/// Bits depend on it. Empty in a GPU build.
std::string product_isa();

}  // namespace tessera
