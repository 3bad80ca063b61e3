#pragma once
#include "kernels/base/choices.hpp"
#include "kernels/base/stream.hpp"

namespace tessera::gemm {

/// What the library is to use for `work`, which a dry pass noted: `preferred` where that is a choice for this work,
/// this library and this GPU, else one of the library's own. Empty: it has none. Waits for nothing, times nothing. The
/// host's libraries leave no choice: nothing is noted there, and nothing chosen.
LibraryChoices::Words choose(Stream& stream, const LibraryChoices::Words& work, const LibraryChoices::Words& preferred);

}  // namespace tessera::gemm
