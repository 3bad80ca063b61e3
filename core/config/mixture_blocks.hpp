#pragma once
#include <cstdint>

namespace tessera {

/// The blocks of a model, counted from 0, whose feed-forward layer is a mixture of experts; the others' are dense.
struct MixtureBlocks {
  std::int64_t first_dense = 0, every = 1;
  bool contain(std::int64_t block) const { return block >= first_dense && (block + 1) % every == 0; }
  /// How many of the first `blocks` are such.
  std::int64_t among(std::int64_t blocks) const {
    return blocks > first_dense ? blocks / every - first_dense / every : 0;
  }
};

}  // namespace tessera
