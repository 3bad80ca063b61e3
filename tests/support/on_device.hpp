#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "core/device/device.hpp"

namespace tessera::test {

/// A copy of `values` on the device, owned by it.
template <class T> Tensor on_device(Device& device, Shape shape, const std::vector<T>& values) {
  require(static_cast<std::int64_t>(values.size()) == shape.elements(), "on_device", "shape and values must agree");
  const Tensor t = device.allocate(Category::activations, dtype_of<T>, shape);
  device.upload(device.compute(), t, values.data());
  return t;
}
template <class T> Tensor on_device(Device& device, const std::vector<T>& values) {
  return on_device(device, Shape{static_cast<std::int64_t>(values.size())}, values);
}

/// A poisoned tensor for outputs: every byte is 0xFF, which is NaN in all real types and -1 in signed integers.
inline Tensor poisoned(Device& device, DType type, Shape shape) {
  const Tensor t = device.allocate(Category::activations, type, shape);
  const std::vector<std::uint8_t> bytes(static_cast<std::size_t>(t.bytes()), 0xFF);
  device.upload(device.compute(), t, bytes.data());
  return t;
}
template <class T> Tensor poisoned(Device& device, Shape shape) { return poisoned(device, dtype_of<T>, shape); }

/// The tensor's elements on the host; waits for the device.
template <class T> std::vector<T> on_host(Device& device, const Tensor& t) {
  require(t.type == dtype_of<T>, "on_host", "the tensor holds another type");
  std::vector<T> values(static_cast<std::size_t>(t.elements()));
  device.download(device.compute(), values.data(), t);
  return values;
}

/// The values in double, for references.
template <class T> std::vector<double> in_double(const std::vector<T>& values) {
  std::vector<double> wide;
  for (const T& v : values) wide.push_back(static_cast<double>(v));
  return wide;
}

/// Repeatable test data, uniform in [low, high), rounded to T.
template <class T> std::vector<T> uniform(std::int64_t n, std::uint64_t seed, double low = -1, double high = 1) {
  std::mt19937_64 bits(seed);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& v : values) {
    const double x = low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
    if constexpr (std::is_same_v<T, double>) v = x;
    else v = T(static_cast<float>(x));
  }
  return values;
}

}  // namespace tessera::test
