#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/stream.hpp"

namespace tessera {

/// to[i] = from[i], converted (fp32 -> bf16 rounds to nearest even; fp64 -> bf16 goes through fp32). Real types, equal
/// element counts.
void convert(Stream& stream, const Tensor& to, const Tensor& from);
/// Copies bytes of equal size on the device.
void copy(Stream& stream, const Tensor& to, const Tensor& from);
/// Fills with zero bytes.
void clear(Stream& stream, const Tensor& t);

/// Table of pairs of arrays that one launch converts, all from one type to one other, in device memory. Make it once;
/// the caller then copies image() to device memory of bytes() and names it by place().
class ConvertTable {
 public:
  struct Pair {
    Tensor to, from;  ///< of equal numbers of elements
  };
  /// A pair as kernels read it.
  struct Row {
    void* to;
    const void* from;
    std::int64_t count;
    std::int64_t first_chunk;  ///< number of chunks of all pairs before
  };
  static constexpr std::int64_t chunk = 4096;  ///< elements of a unit of work

  /// Throws Error{internal} if types differ between pairs, or element counts within a pair.
  explicit ConvertTable(std::span<const Pair> pairs);

  std::int64_t bytes() const { return static_cast<std::int64_t>(rows_.size() * sizeof(Row)); }
  const void* image() const { return rows_.data(); }
  void place(const Tensor& memory) {  ///< u8 [bytes()]
    require(memory.bytes() == bytes(), "ConvertTable", "takes memory of its size");
    memory_ = static_cast<const Row*>(memory.data);
  }

  int pairs() const { return static_cast<int>(rows_.size()) - 1; }
  DType to() const { return to_; }
  DType from() const { return from_; }
  bool aligned() const { return aligned_; }  ///< whether every array is 16-byte aligned
  const std::vector<Row>& rows() const { return rows_; }  ///< with one more row, which holds the end of all chunks
  const Row* memory() const { return memory_; }

 private:
  DType to_ = DType::f32, from_ = DType::f32;
  bool aligned_ = true;
  std::vector<Row> rows_;
  const Row* memory_ = nullptr;
};

/// convert() of pairs [first, last) of a table, in one launch. Orders on `stream`. Local.
void convert(Stream& stream, const ConvertTable& table, int first, int last);

}  // namespace tessera
