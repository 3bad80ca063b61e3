#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace tessera {

/// Up to four dimensions, row-major, the last fastest.
class Shape {
 public:
  static constexpr std::size_t most_dims = 4;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  constexpr explicit Shape(std::span<const std::int64_t> dims) {
    require(dims.size() <= most_dims, "Shape", "at most four dimensions");
    for (std::int64_t d : dims) dims_[static_cast<std::size_t>(rank_++)] = d;
  }
  constexpr int rank() const { return rank_; }
  constexpr std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i < 0 ? rank_ + i : i)]; }
  constexpr std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  constexpr bool operator==(const Shape&) const = default;
  std::vector<std::int64_t> dims() const { return {dims_.begin(), dims_.begin() + rank_}; }
  std::string text() const;  ///< "[2,3]"

 private:
  std::array<std::int64_t, most_dims> dims_{};
  int rank_ = 0;
};

/// {pointer, type, shape}: contiguous, row-major, non-owning. A const Tensor may point to memory that is written:
/// kernels document which arguments they write.
struct Tensor {
  void* data = nullptr;
  DType type = DType::f32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const { return shape.elements(); }
  std::int64_t bytes() const { return elements() * size_of(type); }
  /// Rows of the tensor seen as a matrix [elements / last, last].
  std::int64_t rows() const { return shape[-1] == 0 ? 0 : elements() / shape[-1]; }
  std::int64_t columns() const { return shape[-1]; }

  template <class T> T* as() const {
    require(type == dtype_of<T>, "Tensor::as", "the tensor holds another type");
    return static_cast<T*>(data);
  }
  Tensor view(Shape other) const {
    require(other.elements() == elements(), "Tensor::view", "the number of elements must not change");
    return {data, type, other};
  }
  /// `count` elements from flat element `begin`, as a tensor of one dimension.
  Tensor flat(std::int64_t begin, std::int64_t count) const {
    require(begin >= 0 && count >= 0 && begin + count <= elements(), "Tensor::flat", "the range leaves the tensor");
    return {static_cast<std::byte*>(data) + begin * size_of(type), type, Shape{count}};
  }
  /// Rows [begin, begin + count) of the matrix view.
  Tensor row_range(std::int64_t begin, std::int64_t count) const {
    return flat(begin * columns(), count * columns()).view(Shape{count, columns()});
  }
};

/// Where a gradient is accumulated: sum = beta * sum + contribution. beta is 0 on the step's first write, so that
/// gradients need no clearing.
struct Gradient {
  Tensor sum;
  float beta = 0;
  std::int64_t members = 1;
  std::int64_t member_stride = 0;

  Gradient member(std::int64_t e) const {
    Gradient one{sum, beta, 1, 0};
    one.sum.data = static_cast<std::byte*>(sum.data) + e * member_stride * size_of(sum.type);
    return one;
  }
};

}  // namespace tessera
