#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/state/state_dict.hpp"
#include "io/checkpoint/stored_tensor.hpp"

namespace tessera {

/// A step of a rank's payload on its way between memory and files: elements of one part of a stored tensor, few enough
/// to stay in the cache from their copy to their digest.
struct Slab {
  std::size_t tensor, part;  ///< tensor: of those that are stored
  std::int64_t first;        ///< element of the canonical tensor
  Tensor values;             ///< of the state
};

/// The stored tensor of each of a state's, in its order; null: left out.
using StoredTensors = std::vector<const StoredTensor*>;

/// This rank's, in the order of the state, which is that of the files. No slab crosses the end of a Window.
std::vector<Slab> slabs_of(const std::vector<StateTensor>& held, const StoredTensors& stored);

/// Bytes of a slab in its file, and where they begin there.
std::int64_t bytes_of(const StoredTensors& stored, const Slab& slab);
std::int64_t offset_of(const StoredTensors& stored, const Slab& slab);

/// The slabs in a stretch of a file as long as a block of memory: byte for byte a picture of the stretch, so that a
/// disk fetches and brings whole pages of it.
struct Window {
  std::size_t file;         ///< index in payload_files
  std::int64_t begin, end;  ///< bytes of the file, from the first slab's to the last one's
  std::span<const Slab> slabs;

  /// Where in the block a byte of the file lies.
  std::byte* at(std::span<std::byte> block, std::int64_t offset) const {
    return block.data() + (offset - begin / page_bytes * page_bytes);
  }
};
std::vector<Window> windows_of(const StoredTensors& stored, std::span<const Slab> slabs);

/// Calls of HDF5 that move all slabs, dataset by dataset, and at most `call_bytes` each. Where transfers are
/// `collective`, every rank makes as many calls for a dataset as any may need, the last ones without slabs; so does
/// a rank that has failed, for which `call` must not leave its transfer out, one without `memory` for the calls among
/// them. Throws the first failure at the end.
constexpr std::int64_t call_bytes = std::int64_t{16} << 20;
using MoveSlabs =
    std::function<void(const StoredTensor& tensor, std::size_t part, std::span<const Slab> slabs, std::byte* memory)>;
void each_call(const StoredTensors& stored, std::span<const Slab> slabs, bool collective, const MoveSlabs& call);

}  // namespace tessera
