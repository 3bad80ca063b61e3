#pragma once
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <random>
#include <span>

#include "kernels/quantize/quantize.hpp"
#include "tests/support/on_device.hpp"

namespace tessera::test {

using formats::Matrix;

/// A buffer between two guard zones, all 0xFF at first; untouched() says whether the zones still are.
class Guarded {
 public:
  Guarded() = default;
  Guarded(Device& device, DType type, std::int64_t elements) {
    const std::int64_t zone = guard / size_of(type);
    whole_ = poisoned(device, type, {elements + 2 * zone});
    inner = whole_.flat(zone, elements);
  }
  bool untouched(Device& device) const {
    if (!whole_) return true;
    const auto bytes = on_host<std::uint8_t>(device, {whole_.data, DType::u8, Shape{whole_.bytes()}});
    for (std::int64_t i = 0; i < guard; ++i)
      if (bytes[static_cast<std::size_t>(i)] != 0xFF || bytes[bytes.size() - 1 - static_cast<std::size_t>(i)] != 0xFF)
        return false;
    return true;
  }
  std::vector<std::uint8_t> bytes(Device& device) const {
    return on_host<std::uint8_t>(device, {inner.data, DType::u8, Shape{inner.bytes()}});
  }
  Tensor inner{nullptr, DType::u8, Shape{0}};

 private:
  static constexpr std::int64_t guard = 256;
  Tensor whole_;
};

/// Reserved address space of host memory, zeros on first touch: for arrays far larger than the machine's memory.
class Reserved {
 public:
  explicit Reserved(std::int64_t bytes)
      : size_(static_cast<std::size_t>(bytes)),
        data_(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    require(data_ != MAP_FAILED, "Reserved", "no addresses");
  }
  ~Reserved() { ::munmap(data_, size_); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  Tensor tensor(DType type) const { return {data_, type, Shape{static_cast<std::int64_t>(size_) / size_of(type)}}; }
  std::span<std::uint8_t> bytes() const { return {static_cast<std::uint8_t*>(data_), size_}; }

 private:
  std::size_t size_;
  void* data_;
};

/// The buffers of one copy of F.
template <formats::Format F>
struct GuardedCopy {
  Guarded data, scales, amax;
  GuardedCopy() = default;
  GuardedCopy(Device& device, Side side, Matrix m, std::int64_t members)
      : data(device, dtype_of<typename F::Element::Storage>, members * formats::data_shape<F>(side, m).elements()),
        scales(device, dtype_of<typename F::Scale>, members * formats::padded_extent<F>(side, m).elements()),
        amax(device, DType::f32, members * traits_of<F>().amaxes(side, m)) {}
  Copy copy() const { return {data.inner, scales.inner, F::tensor_amax ? amax.inner : Tensor{}, {}}; }
  bool untouched(Device& device) const {
    return data.untouched(device) && scales.untouched(device) && amax.untouched(device);
  }
};

/// A table in device memory.
inline QuantizeTable placed(Device& device, FormatId format, const std::vector<QuantizedMatrix>& matrices) {
  QuantizeTable table(format, matrices);
  table.bind(device.allocate(Category::weights, DType::u8, {table.bytes()}));
  device.upload(device.compute(), table);
  return table;
}

/// Random values over many binades, unlike weights; with `odd` one in eight is zero, infinite, NaN, subnormal or huge.
inline std::vector<float> wild(std::int64_t n, std::uint64_t seed, bool odd) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  const float specials[] = {0.0f,
                            -0.0f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::nanf(""),
                            -std::nanf(""),
                            1e-40f,
                            -9.2e-41f,
                            3.3e38f,
                            1.17e-38f};
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) {
    const std::uint64_t pick = bits();
    v = static_cast<float>(normal(bits) * std::exp2(static_cast<double>(pick >> 8 & 7) - 6));
    if (odd && pick % 8 == 0) v = specials[(pick >> 16) % std::size(specials)];
  }
  return values;
}

}  // namespace tessera::test
