#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/state/state_dict.hpp"
#include "io/checkpoint/stored_tensor.hpp"

namespace tessera {

/// The unit of payload that moves between memory and files. It is neighbouring elements of one dataset of a stored
/// tensor, few enough to stay in the cache between their copy and their digest.
struct Slab {
  std::size_t tensor, dataset;  ///< tensor: index among the stored ones
  std::int64_t first;          ///< number of its first element in the canonical tensor
  Tensor values;               ///< in the state's memory
  std::int64_t offset, bytes;  ///< in the file

  std::int64_t end() const { return offset + bytes; }
};

/// The stored tensor of each tensor of a state, in the state's order; null: left out.
using StoredTensors = std::vector<const StoredTensor*>;

/// Slabs in one stretch of a file, which has the length of a block of memory. The block is laid out as the stretch is,
/// so that a disk reads and writes whole pages of it.
struct Window {
  std::size_t file;         ///< index in payload_files
  std::int64_t begin, end;  ///< bytes of the file, from the first slab to the end of the last
  std::vector<Slab> slabs;  ///< ascending

  /// The address in the block of byte `offset` of the file.
  std::byte* at(std::span<std::byte> block, std::int64_t offset) const;
};

/// This rank's slabs, window by window, in the order of the state, which is the order of the files.
std::vector<Window> windows_of(const std::vector<StateTensor>& held, const StoredTensors& stored);

}  // namespace tessera
