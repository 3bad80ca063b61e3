#pragma once
#include <array>
#include <deque>
#include <optional>

#include "core/params/wires/exchanges.hpp"
#include "core/params/wires/parts.hpp"
#include "core/params/wires/wire.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// Base of wires whose weights are held as codes: keeps operands, makes entries of quantization tables, and lists the
/// arrays that travel.
class CodedWire : public Wire {
 public:
  std::span<Exchange> exchanges(GroupId group, const Held& held) final {
    return exchanges_.of(group, held);
  }
  Operand operand(ParamId param, Side side, int place) const final {
    return operands_[static_cast<std::size_t>(place)][param][static_cast<std::size_t>(side)];
  }

 protected:
  CodedWire(const WireContext& context, std::span<const WireBucket> buckets);

  FormatId format() const { return format_; }
  /// Table entries without source values, one for each parameter of a bucket, in the order of its members. Scales that
  /// travel lie in `block_scales`.
  std::vector<QuantizedMatrix> matrices_of(const WireBucket& own, const Planes& planes,
                                           const StoredArray& block_scales = {}) const;
  /// The same with this rank's part of the masters as source values.
  std::vector<QuantizedMatrix> owned_matrices_of(const WireBucket& own, const Planes& planes,
                                                 const StoredArray& block_scales = {}) const;

  /// Registers `array` with the all-gathers of its bucket: each completes it in place.
  void travels(const WireBucket& own, const Tensor& array, Parts parts);
  /// Registers `array` with those all-gathers of its bucket that gather `part`; this rank's part is sent from `kept`.
  void travels(const WireBucket& own, const Held& part, const Tensor& kept, const Tensor& array, const Parts& parts);

  const WireContext context_;

 private:
  void add_operands(const WireBucket& own, std::size_t place);

  FormatId format_;
  std::deque<Parts> parts_;  ///< exchanges refer to their vectors
  Exchanges exchanges_;
  std::vector<IndexedBy<ParamId, std::array<Operand, 2>>> operands_;  ///< by place
};

/// The buckets with dense parameters before experts, so that what a process group agrees on makes few ranges.
std::vector<WireBucket> by_processes(const WireContext& context, std::span<const WireBucket> buckets);

/// Elements of a parameter, gaps between its members included.
std::int64_t positions_of(const QuantizedMatrix& matrix);

}  // namespace tessera
