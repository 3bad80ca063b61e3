#pragma once
#include <cstdint>
#include <span>

#include "kernels/base/device_table.hpp"
#include "kernels/base/stream.hpp"

namespace tessera {

/// to[i] = from[i], converted (fp32 -> bf16 rounds to nearest even; fp64 -> bf16 goes through fp32). Real types, equal
/// element counts.
void convert(Stream& stream, const Tensor& to, const Tensor& from);
/// Copies bytes of equal size on the device.
void copy(Stream& stream, const Tensor& to, const Tensor& from);
/// Fills with zero bytes.
void clear(Stream& stream, const Tensor& t);

/// A pair of arrays as kernels read it.
struct ConvertRow {
  void* to;
  const void* from;
  std::int64_t count;
  std::int64_t first_chunk;  ///< number of chunks of all pairs before
};

/// Pairs of arrays that one launch converts, all from one type to one other, followed by one row with the end of all
/// chunks.
class ConvertTable : public DeviceTable<ConvertRow> {
 public:
  struct Pair {
    Tensor to, from;  ///< of equal numbers of elements
  };
  static constexpr std::int64_t chunk = 4096;  ///< elements of a unit of work

  /// Throws Error{internal} if types differ between pairs, or element counts within a pair.
  explicit ConvertTable(std::span<const Pair> pairs);

  int pairs() const { return static_cast<int>(rows().size()) - 1; }
  DType to() const { return to_; }
  DType from() const { return from_; }
  bool aligned() const { return aligned_; }  ///< whether every array is 16-byte aligned

 private:
  DType to_ = DType::f32, from_ = DType::f32;
  bool aligned_ = true;
};

/// convert() of pairs [first, last) of a table, in one launch. Orders on `stream`. Local.
void convert(Stream& stream, const ConvertTable& table, int first, int last);

}  // namespace tessera
