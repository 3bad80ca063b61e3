#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/device/device.hpp"

/// Test data of collectives: integers that encode the rank and position by which they were written.
namespace tessera::test {

using Values = std::vector<std::uint64_t>;

/// Value of rank `rank` at position i of buffer `salt`; never 0, so that memory that was not written is found.
inline std::uint64_t value(int salt, int rank, std::int64_t i) {
  std::uint64_t z = (static_cast<std::uint64_t>(salt) << 40) + (static_cast<std::uint64_t>(rank) << 32) +
                    static_cast<std::uint64_t>(i) + 1;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  return z ^ (z >> 27);
}

/// Integers of any width on the device.
struct Buffer {
  Buffer(Device& d, DType type, std::int64_t n) : device(d), tensor(d.allocate(Category::batch, type, {n})) {}

  std::uint64_t cut(std::uint64_t v) const {
    const std::int64_t bits = 8 * size_of(tensor.type);
    return bits == 64 ? v : v & ((std::uint64_t{1} << bits) - 1);
  }
  template <class F> void fill(const F& f) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.bytes()));
    const auto width = static_cast<std::size_t>(size_of(tensor.type));
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const std::uint64_t v = f(i);
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * width, &v, width);  // little-endian
    }
    device.upload(device.compute(), tensor, bytes.data());
  }
  Values read() const {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.bytes()));
    device.download(device.compute(), bytes.data(), tensor);
    Values values(static_cast<std::size_t>(tensor.elements()));
    const auto width = static_cast<std::size_t>(size_of(tensor.type));
    for (std::size_t i = 0; i < values.size(); ++i) std::memcpy(&values[i], bytes.data() + i * width, width);
    return values;
  }

  Device& device;
  Tensor tensor;
};

}  // namespace tessera::test
