#pragma once
#include <array>
#include <deque>
#include <optional>

#include "core/params/wires/exchanges.hpp"
#include "core/params/wires/parts.hpp"
#include "core/params/wires/wire.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// Base of wires whose weights are held as codes: their operands, the entries of their tables, and the arrays that
/// travel.
class CodedWire : public Wire {
 public:
  std::span<const Exchange> exchanges(GroupId group, const Held& held) const final {
    return exchanges_.of(group, held);
  }
  Operand operand(ParamId param, Side side, int place) const final {
    return operands_[static_cast<std::size_t>(place)][param][static_cast<std::size_t>(side)];
  }

 protected:
  CodedWire(const WireContext& context, std::span<const WireBucket> buckets);

  FormatId format() const { return format_; }
  /// Entries of a table without values, one a parameter of a bucket in the order of its members; scales, where they
  /// travel, lie in `block_scales`.
  std::vector<QuantizedMatrix> matrices_of(const WireBucket& own, const Planes& planes,
                                           const StoredArray& block_scales = {}) const;
  /// The same with this rank's part of the masters as values.
  std::vector<QuantizedMatrix> owned_matrices_of(const WireBucket& own, const Planes& planes,
                                                 const StoredArray& block_scales = {}) const;

  /// `array` is completed by each all-gather of its bucket, in place.
  void travels(const WireBucket& own, const Tensor& array, Parts parts);
  /// The same where `part` is gathered, with this rank's part from `kept`.
  void travels(const WireBucket& own, const Held& part, const Tensor& kept, const Tensor& array, const Parts& parts);

  const WireContext context_;

 private:
  void add_operands(const WireBucket& own, std::size_t place);

  FormatId format_;
  std::deque<Parts> parts_;  ///< that exchanges refer to
  Exchanges exchanges_;
  std::vector<IndexedBy<ParamId, std::array<Operand, 2>>> operands_;  ///< by place
};

/// Elements of a parameter, with the gaps between its members.
std::int64_t positions_of(const QuantizedMatrix& matrix);

}  // namespace tessera
