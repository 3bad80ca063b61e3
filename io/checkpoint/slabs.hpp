#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/state/state_dict.hpp"
#include "io/checkpoint/stored_tensor.hpp"

namespace tessera {

/// The unit of payload that moves between memory and files: elements of one part of a stored tensor, few enough to stay
/// in the cache between their copy and their digest.
struct Slab {
  std::size_t tensor, part;  ///< tensor: index among the stored ones
  std::int64_t first;        ///< number of its first element in the canonical tensor
  Tensor values;             ///< in the state's memory
};

/// The stored tensor of each tensor of a state, in the state's order; null: left out.
using StoredTensors = std::vector<const StoredTensor*>;

/// This rank's slabs in the order of the state, which is the order of the files. No slab crosses the end of a Window.
std::vector<Slab> slabs_of(const std::vector<StateTensor>& held, const StoredTensors& stored);

/// A slab's bytes in its file, and the offset at which they begin.
std::int64_t bytes_of(const StoredTensors& stored, const Slab& slab);
std::int64_t offset_of(const StoredTensors& stored, const Slab& slab);

/// The slabs in one stretch of a file, which has the length of a block of memory. The block is laid out as the stretch
/// is, so that a disk reads and writes whole pages of it.
struct Window {
  std::size_t file;         ///< index in payload_files
  std::int64_t begin, end;  ///< bytes of the file, from the first slab to the end of the last
  std::span<const Slab> slabs;

  /// The address in the block of byte `offset` of the file.
  std::byte* at(std::span<std::byte> block, std::int64_t offset) const {
    return block.data() + (offset - begin / page_bytes * page_bytes);
  }
};
std::vector<Window> windows_of(const StoredTensors& stored, std::span<const Slab> slabs);

/// Moves all slabs by calls of HDF5, dataset by dataset: 2 MiB at a time, which stay in the processor's cache. By
/// `collective` transfers, in which ranks wait for each other, 16 MiB; every rank makes as many calls per dataset as
/// any rank may need, the last ones without slabs. A rank that has failed goes on with calls without slabs, whose
/// `memory` may be null; a `call` that fails must still make its transfer. Throws the first failure at the end.
using MoveSlabs =
    std::function<void(const StoredTensor& tensor, std::size_t part, std::span<const Slab> slabs, std::byte* memory)>;
void each_call(const StoredTensors& stored, std::span<const Slab> slabs, bool collective, const MoveSlabs& call);

}  // namespace tessera
