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

/// Pairs of arrays that are converted in one launch, all from one type to one other. A list of them lies in device
/// memory: made once, then `place`d in memory of bytes() into which the caller copies image().
class ConvertTable {
 public:
  struct Pair {
    Tensor to, from;  ///< as many elements each
  };
  /// What a kernel reads of a pair.
  struct Row {
    void* to;
    const void* from;
    std::int64_t count;
    std::int64_t first_chunk;  ///< chunks of all pairs before
  };
  static constexpr std::int64_t chunk = 4096;  ///< elements that are worked on at once

  /// Throws Error{internal} where types or counts differ.
  explicit ConvertTable(std::span<const Pair> pairs);

  std::int64_t bytes() const { return static_cast<std::int64_t>(rows_.size() * sizeof(Row)); }
  const void* image() const { return rows_.data(); }
  void place(const Tensor& memory) { memory_ = static_cast<const Row*>(memory.data); }  ///< u8 [bytes()]

  int pairs() const { return static_cast<int>(rows_.size()) - 1; }
  DType to() const { return to_; }
  DType from() const { return from_; }
  bool aligned() const { return aligned_; }  ///< every array begins at a multiple of 16 bytes
  const std::vector<Row>& rows() const { return rows_; }  ///< and one behind the last, for the end of its chunks
  const Row* memory() const { return memory_; }

 private:
  DType to_ = DType::f32, from_ = DType::f32;
  bool aligned_ = true;
  std::vector<Row> rows_;
  const Row* memory_ = nullptr;
};

/// convert() of pairs [first, last) of a table, in one launch. Local; orders on `stream`.
void convert(Stream& stream, const ConvertTable& table, int first, int last);

}  // namespace tessera
