#pragma once
#include "kernels/base/choices.hpp"
#include "kernels/base/stream.hpp"

namespace tessera::gemm {

/// The algorithm to use for `work`, a product that a dry pass noted. It is `preferred` if it is valid for this work,
/// library and GPU, else the library's first choice. Empty if the library has none. Waits for nothing, times nothing.
/// On the host nothing is noted and nothing chosen: libraries there leave no choice.
LibraryChoices::Words choose(Stream& stream, const LibraryChoices::Words& work, const LibraryChoices::Words& preferred);

}  // namespace tessera::gemm
