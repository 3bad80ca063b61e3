#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/payload.hpp"
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

  /// Reads this rank's ranges of `held` and hands them to `work`, slab by slab in their order. `stored`: the tensor of
  /// this source for each, equal on all ranks. Collective over the world.
  virtual void read_each(const std::vector<StateTensor>& held, const StoredTensors& stored, const SlabWork& work,
                         On on) const;
};

}  // namespace tessera
