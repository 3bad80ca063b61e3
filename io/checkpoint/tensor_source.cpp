#include "io/checkpoint/tensor_source.hpp"

namespace tessera {

/// The default: each rank reads for itself and waits for no other.
void TensorSource::read_each(const std::vector<StateTensor>& held, const StoredTensors& stored, const SlabWork& work,
                             On) const {
  std::vector<std::byte> elements;
  for (const Window& window : windows_of(held, stored))
    for (const Slab& slab : window.slabs) {
      elements.resize(static_cast<std::size_t>(slab.bytes));
      read(*stored[slab.tensor], slab.first, slab.values.elements(), elements.data());
      work(slab, elements.data());
    }
}

}  // namespace tessera
