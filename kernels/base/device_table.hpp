#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/base/tensor.hpp"

namespace tessera {

/// Bytes that are made on the host and that kernels read in device memory. Make an image once; bind() names its device
/// memory, and Device::upload() copies it there. Copies of an image share that memory.
class DeviceImage {
 public:
  std::int64_t bytes() const { return std::ssize(image_); }
  const std::byte* image() const { return image_.data(); }
  /// Names the device memory of the image, u8 [bytes()], which must outlive every launch that reads it. Throws
  /// Error{internal} for memory of another size. Local.
  void bind(const Tensor& memory) {
    require(memory.bytes() == bytes(), "DeviceImage::bind", "takes device memory of the image's size");
    memory_ = static_cast<std::byte*>(memory.data);
  }
  /// The image in device memory; null for an empty image. Throws Error{internal} before bind().
  std::byte* memory() const {
    require(memory_ != nullptr || image_.empty(), "DeviceImage::memory", "is not bound to device memory");
    return memory_;
  }

 protected:
  DeviceImage() = default;
  template <class T> void append(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::as_bytes(values);
    image_.insert(image_.end(), bytes.begin(), bytes.end());
  }
  void append_zeros(std::size_t bytes) { image_.resize(image_.size() + bytes); }

 private:
  std::vector<std::byte> image_;
  std::byte* memory_ = nullptr;
};

/// An image of descriptors, one a unit of work, for a launch whose arguments are too many to pass.
template <class OneRow> class DeviceTable : public DeviceImage {
 public:
  using Row = OneRow;

  static constexpr std::int64_t bytes_of(std::int64_t rows) { return rows * std::int64_t{sizeof(Row)}; }
  /// The rows on the host, and the same in device memory.
  std::span<const Row> rows() const {
    return {reinterpret_cast<const Row*>(image()), static_cast<std::size_t>(bytes()) / sizeof(Row)};
  }
  const Row* device_rows() const { return reinterpret_cast<const Row*>(memory()); }

 protected:
  void add(const Row& row) { append(std::span(&row, 1)); }
};

}  // namespace tessera
