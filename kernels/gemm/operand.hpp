#pragma once
#include <optional>

#include "kernels/base/tensor.hpp"
#include "kernels/formats/id.hpp"
#include "kernels/formats/side.hpp"

namespace tessera {

/// How to decode an operand's bytes: their format, the side of the copy, and its scales.
struct Codes {
  FormatId format{};
  Side side = Side::rowwise;
  Tensor scales;  ///< formats::scale_shape of one member, members packed; empty if the format has none
  Tensor amax;    ///< f32, FormatTraits::amaxes() for each member; empty if the format has none
};

/// One factor of a product, a matrix [rows, columns] or `members` of them at a fixed distance (a grouped expert
/// weight). It is values, or codes of one side, or the bf16 values that codes stand for.
struct Operand {
  Tensor data;  ///< of the first member; of codes, formats::data_shape of their side, or bf16 values
  std::int64_t members = 1;
  std::int64_t member_stride = 0;  ///< elements from one member to the next
  std::optional<Codes> codes;      ///< empty: data are values

  Operand() = default;
  Operand(const Tensor& values, std::int64_t count = 1, std::int64_t stride = 0)  // a matrix of values is an operand
      : data(values), members(count), member_stride(stride) {}
  Operand(const Tensor& bytes, const Codes& read_by, std::int64_t count = 1, std::int64_t stride = 0)
      : data(bytes), members(count), member_stride(stride), codes(read_by) {}

  /// Whether codes are stored decoded: bf16 values [rows, columns] without the tensor's scale, which is codes->amax.
  bool decoded() const { return codes && data.type == DType::bf16; }
  /// Rows and columns of one member, independent of the order and width of its codes.
  std::int64_t rows() const;
  std::int64_t columns() const;
  /// Operand of one member alone.
  Operand member(std::int64_t e) const;
};

/// Matrices of all experts: one T with E members (single), or E of one member each (discrete).
template <class T>
struct Members {
  const T* list = nullptr;
  int count = 0;  ///< 1 or E

  T operator[](std::int64_t e) const { return count == 1 ? list[0].member(e) : list[e]; }
};
using ExpertOperands = Members<Operand>;
using ExpertGradients = Members<Gradient>;

}  // namespace tessera
