#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/slabs.hpp"
#include "io/checkpoint/stored_tensor.hpp"

namespace tessera {

/// Where tensors are read from: canonical ones, by any piece, by each rank for itself but for read_each().
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual std::string name() const = 0;
  virtual const std::vector<StoredTensor>& tensors() const = 0;
  /// Whether its tensors say which digest they must have.
  virtual bool has_digests() const = 0;
  /// Elements [first, first + count) into host memory, in the tensor's type. Throws Error{file}.
  virtual void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const = 0;

  /// Takes a slab of its tensor's stored elements, which are there until the next one.
  using Take = std::function<void(const Slab& slab, const std::byte* elements)>;
  /// Reads this rank's `slabs` of `stored`, and hands each on in their order. `stored` are tensors of this source
  /// that any rank reads, the same on all ranks. Collective.
  virtual void read_each(const StoredTensors& stored, std::span<const Slab> slabs, const Take& take) const;
};

}  // namespace tessera
