#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/base/device_table.hpp"
#include "kernels/base/stream.hpp"
#include "kernels/formats/registry.hpp"
#include "kernels/quantize/descriptor.hpp"

namespace tessera {

namespace quantizer {
class Claims;
}

/// What copies hold: codes and scales, or the bf16 values that products take in place of codes.
enum class Contents : std::uint8_t { codes, factors };

/// Buffers of one copy of a quantized matrix and its members. Empty `data`: the copy is not made.
struct Copy {
  Tensor data;      ///< formats::data_shape, members at `member_stride`; u8, bf16 for the format bf16
  Tensor scales;    ///< formats::scale_shape times members; u8 or f32
  Tensor amax;      ///< f32, FormatTraits::amaxes() for each member; formats with a tensor scale
  Tensor swizzled;  ///< bytes of `scales` in the order of block-scaled GEMMs; written by swizzle_scales
};

/// Random numbers of stochastic rounding: element (r, c) of a member takes byte number row(r) * columns + c of the
/// random stream keyed by draw_key(), where row(r) is rows[r], or first_row + r without `rows`. Kernels read the step
/// on the device, so that replays of a captured launch draw new numbers in each step.
struct Draws {
  std::uint64_t seed = 0;
  std::uint64_t rowwise = 0, columnwise = 0;  ///< fnv1a64("sr:<canonical weight>:row"), and ":col"
  Tensor step;                                ///< u64 [1] on the device, from 1; needed where gradients are rounded
  std::int64_t first_row = 0;
  Tensor rows;  ///< i64 on the device, one per row of all members
};

/// What an entry's buffers hold. whole: whole matrices; owned: the owned part only, addressed as in whole matrices.
enum class Buffers : std::uint8_t { whole, owned };

/// One entry of a table: a matrix, or `members` matrices of one shape (a grouped expert weight), and their buffers. The
/// position of an element is p = e * member_stride + r * columns + c. `values` holds positions [begin, begin + n): all,
/// or those that a rank owns. Its type is bf16 or f32, the same in the whole table.
struct QuantizedMatrix {
  std::string name;  ///< for error messages
  formats::Matrix matrix;
  std::int64_t members = 1;
  std::int64_t member_stride = 0;  ///< elements between the beginnings of members; 0: members are contiguous
  Tensor values;
  ElementIndex begin;
  Copy rowwise, columnwise;
  Tensor block_scales;     ///< if scales travel: one scale per block and member (the copies may then have no scales)
  Tensor not_finite = {};  ///< u64 [1], set to 1 if quantize() finds NaN or infinity in bf16; empty: not checked
  Tensor column_sums = {};  ///< f32 column_sums_shape(): receives the column sums of each 128 rows quantized, added
                            ///< by sixteens, in order. Empty: not computed. quantize_one() of one matrix only
  Tensor rows_end = {};  ///< i32 [1] on the device: rows from there on are neither read nor written; a multiple of each
                         ///< block's rows. Of one matrix only. Empty: all rows are in use
  Draws draws;
  Buffers buffers = Buffers::whole;
};

/// Matrices of one format that one launch quantizes: descriptors, and behind them lists of all units of work and
/// scratch. The constructor throws Error{internal} with tensor, shape and rule. The causes are shapes that a wanted
/// side does not take, counts beyond 64 bits, and missing, short, misaligned or overlapping buffers. Buffers of one
/// matrix or of two may not overlap, unless they are parts of one matrix with disjoint owned positions.
class QuantizeTable : public DeviceImage {
 public:
  QuantizeTable(FormatId format, std::span<const QuantizedMatrix> matrices);

  FormatId format() const { return format_; }
  DType values_type() const { return values_type_; }

  /// Numbers of entries of the amax buffer (bf16): one for every block of every matrix, then one for every member.
  std::int64_t block_entries() const { return block_entries_; }
  std::int64_t member_entries() const { return member_entries_; }
  std::int64_t amax_entries() const { return block_entries_ + member_entries_; }
  /// Index in that buffer of a matrix's first block and first member; for matrix = number of matrices, their end.
  std::int64_t first_block(std::size_t matrix) const {
    return matrix < descriptors_.size() ? descriptors_[matrix].first_block : block_entries_;
  }
  std::int64_t first_member(std::size_t matrix) const {
    return block_entries_ + (matrix < descriptors_.size() ? descriptors_[matrix].first_member : member_entries_);
  }

  bool whole_block_rows() const;  ///< whether owned elements are whole blocks of every copy that is made
  bool whole_block_rows_where_scales_travel() const;  ///< the same of the matrices that have `block_scales`
  bool whole() const;                                 ///< whether every element of every matrix is owned
  const std::vector<quantizer::Descriptor>& descriptors() const { return descriptors_; }
  quantizer::TableView view() const;  ///< throws Error{internal} before bind()

 private:
  void add(const FormatTraits& format, const QuantizedMatrix& matrix, quantizer::Claims& claims);
  void add_tasks(const FormatTraits& format, const quantizer::Descriptor& d);
  void build_image();

  FormatId format_;
  DType values_type_ = DType::bf16;
  std::vector<quantizer::Descriptor> descriptors_;
  std::vector<quantizer::Task> owned_, all_, members_, owned_groups_, all_groups_, turned_;
  std::int64_t block_entries_ = 0, member_entries_ = 0;
};

namespace quantizer {

/// One whole matrix as a table that is passed with the launch: for factors of products, whose addresses change from
/// call to call. Allocates nothing; scratch is the stream's. Throws like QuantizeTable, but does not check for
/// overlaps.
TableView view_of_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix,
                      Contents contents = Contents::codes);
/// The same for members whose copies are in separate memory: describes the first member and lists the areas of all;
/// member_apart() gives the others.
TableView view_of_apart(FormatId format, const QuantizedMatrix& matrix, std::span<const Copy> copies, Side side,
                        Apart& apart);

}  // namespace quantizer

}  // namespace tessera
