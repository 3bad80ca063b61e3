#include "kernels/base/arena.hpp"

#include <algorithm>

#include "kernels/base/index.hpp"

namespace tessera {

void Arena::claim(std::int64_t below, std::int64_t above) {
  if (below + above > bytes_) refuse("Arena", "the step needs more activation memory than was planned");
  below_ = below;
  above_ = above;
  peak_ = std::max(peak_, below_ + above_);
}

std::byte* Arena::address(std::int64_t offset) const {
  // An address of a measuring arena is never dereferenced; it only has to be non-null and as aligned as a real one.
  return measuring_ ? reinterpret_cast<std::byte*>(alignment + offset) : memory_ + offset;
}

Tensor Arena::keep(DType type, Shape shape) {
  const std::int64_t begin = below_;
  claim(below_ + round_up(shape.elements() * size_of(type), alignment), above_);
  return {address(begin), type, shape};
}

Tensor Arena::temp(DType type, Shape shape) {
  claim(below_, above_ + round_up(shape.elements() * size_of(type), alignment));
  return {address(bytes_ / alignment * alignment - above_), type, shape};
}

}  // namespace tessera
