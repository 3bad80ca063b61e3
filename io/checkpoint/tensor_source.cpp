#include "io/checkpoint/tensor_source.hpp"

namespace tessera {

/// The default: each rank reads for itself and waits for no other.
void TensorSource::read_each(const StoredTensors& stored, std::span<const Slab> slabs, const Take& take) const {
  std::vector<std::byte> elements;
  for (const Slab& slab : slabs) {
    elements.resize(static_cast<std::size_t>(bytes_of(stored, slab)));
    read(*stored[slab.tensor], slab.first, slab.values.elements(), elements.data());
    take(slab, elements.data());
  }
}

}  // namespace tessera
