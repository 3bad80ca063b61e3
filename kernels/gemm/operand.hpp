#pragma once
#include <optional>

#include "kernels/base/tensor.hpp"
#include "kernels/formats/id.hpp"
#include "kernels/formats/side.hpp"

namespace tessera {

/// What turns an operand's bytes into numbers: the copy of a format that they are, and its scales.
struct Codes {
  FormatId format{};
  Side side = Side::rowwise;
  Tensor scales;  ///< formats::scale_shape of one member, members behind one another; empty where there are none
  Tensor amax;    ///< f32 [members]; empty where the format has none
};

/// One factor of a product, a matrix [rows, columns] or `members` of them at a fixed distance (a grouped expert
/// weight): values, or codes of one side, or what these are decoded to.
struct Operand {
  Tensor data;  ///< of the first member; of codes, formats::data_shape of their side, or bf16 values
  std::int64_t members = 1;
  std::int64_t member_stride = 0;  ///< elements from one member to the next
  std::optional<Codes> codes;      ///< none: values

  Operand() = default;
  Operand(const Tensor& values, std::int64_t count = 1, std::int64_t stride = 0)  // a matrix of values is an operand
      : data(values), members(count), member_stride(stride) {}
  Operand(const Tensor& bytes, const Codes& read_by, std::int64_t count = 1, std::int64_t stride = 0)
      : data(bytes), members(count), member_stride(stride), codes(read_by) {}

  /// Whether codes lie decoded: as bf16 values [rows, columns], without the tensor's scale, which is codes->amax.
  bool decoded() const { return codes && data.type == DType::bf16; }
  /// Of one member, whatever the order and the width of its codes.
  std::int64_t rows() const;
  std::int64_t columns() const;
  /// One member alone: where it lies follows from the bits of an element.
  Operand member(std::int64_t e) const;
};

/// Matrices of all experts: one thing of E members, or E of one.
template <class T>
struct Members {
  const T* list = nullptr;
  int count = 0;  ///< 1 or E

  T operator[](std::int64_t e) const { return count == 1 ? list[0].member(e) : list[e]; }
};
using ExpertOperands = Members<Operand>;
using ExpertGradients = Members<Gradient>;

}  // namespace tessera
