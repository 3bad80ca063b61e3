#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/slabs.hpp"
#include "io/checkpoint/stored_tensor.hpp"

namespace tessera {

/// Where canonical tensors are read from, in any pieces. Each rank reads for itself, except in read_each().
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual std::string name() const = 0;
  virtual const std::vector<StoredTensor>& tensors() const = 0;
  /// Whether its tensors carry digests.
  virtual bool has_digests() const = 0;
  /// Reads elements [first, first + count) into host memory, in the tensor's type. Throws Error{file}. Local.
  virtual void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const = 0;

  /// Receives a slab of the tensor's stored elements, which are valid until the next one.
  using Take = std::function<void(const Slab& slab, const std::byte* elements)>;
  /// Reads this rank's `slabs` of `stored` and hands them to `take` in order. `stored`: tensors of this source that any
  /// rank reads, equal on all ranks. Collective over the world.
  virtual void read_each(const StoredTensors& stored, std::span<const Slab> slabs, const Take& take) const;
};

}  // namespace tessera
