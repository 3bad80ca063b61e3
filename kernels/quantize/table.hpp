#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/base/stream.hpp"
#include "kernels/formats/registry.hpp"
#include "kernels/quantize/descriptor.hpp"

namespace tessera {

namespace quantizer {
class Claims;
}

/// What copies hold: codes and scales, or the bf16 values that products take from them.
enum class Contents : std::uint8_t { codes, factors };

/// Where one copy of a quantized matrix lies; members follow one another. An empty `data`: the copy is not made.
struct Copy {
  Tensor data;      ///< formats::data_shape, members at `member_stride`; u8, bf16 for the format bf16
  Tensor scales;    ///< formats::scale_shape times members; u8 or f32
  Tensor amax;      ///< f32, one per member; formats with a tensor scale
  Tensor swizzled;  ///< bytes of `scales` in the order of block-scaled GEMMs; written by swizzle_scales alone
};

/// The random numbers of stochastic rounding: element (r, c) of a member takes the byte of canonical index
/// row(r) * columns + c, where row(r) is rows[r], or first_row + r, in the stream that draw_key() says. The step is
/// read where the kernel runs, so that work which is captured once draws anew in each step.
struct Draws {
  std::uint64_t seed = 0;
  std::uint64_t rowwise = 0, columnwise = 0;  ///< fnv1a64("sr:<canonical weight>:row"), and ":col"
  Tensor step;                                ///< u64 [1] on the device, from 1; needed where gradients are rounded
  std::int64_t first_row = 0;
  Tensor rows;  ///< i64 on the device, one per row of all members
};

/// What an entry's buffers hold: whole matrices, or what is owned alone, at the address that it has in whole ones.
enum class Buffers : std::uint8_t { whole, owned };

/// One entry of a table: a matrix, or `members` of one shape (a grouped expert weight), and where everything lies.
/// Position p = e * member_stride + r * columns + c numbers the elements; `values` holds positions [begin, begin + n),
/// which is all of them, or what a rank owns. Its type is bf16 or f32, one for the whole table.
struct QuantizedMatrix {
  std::string name;  ///< for refusals
  formats::Matrix matrix;
  std::int64_t members = 1;
  std::int64_t member_stride = 0;  ///< elements; 0: they touch
  Tensor values;
  ElementIndex begin;
  Copy rowwise, columnwise;
  Tensor block_scales;     ///< one scale per block and member, where scales travel (those of the copies may lack then)
  Tensor not_finite = {};  ///< u64 [1], set to 1 where quantize() meets NaN or infinity in bf16; empty: not sought
  Draws draws;
  Buffers buffers = Buffers::whole;
};

/// Matrices of one format that are worked on in one launch: descriptors and a list of all units of work, in device
/// memory. Made once; then `place`d in memory of bytes() into which the caller copies image(). Construction
/// throws Error{internal} naming tensor, shape and rule: shapes that a wanted side does not take, missing, short,
/// misaligned or overlapping buffers (of one matrix or of two, unless these are parts of one, owned apart), counts
/// beyond 64 bits.
class QuantizeTable {
 public:
  QuantizeTable(FormatId format, std::span<const QuantizedMatrix> matrices);

  FormatId format() const { return format_; }
  DType values_type() const { return values_type_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(image_.size()); }
  const std::byte* image() const { return image_.data(); }
  void place(const Tensor& memory);  ///< u8 [bytes()]

  /// Entries of the amax buffer (bf16): every block of every matrix, then the largest of each member.
  std::int64_t block_entries() const { return block_entries_; }
  std::int64_t member_entries() const { return member_entries_; }
  std::int64_t amax_entries() const { return block_entries_ + member_entries_; }
  /// Where a matrix's blocks and members begin among them; of the number behind the last matrix, where they end.
  std::int64_t first_block(std::size_t matrix) const {
    return matrix < descriptors_.size() ? descriptors_[matrix].first_block : block_entries_;
  }
  std::int64_t first_member(std::size_t matrix) const {
    return block_entries_ + (matrix < descriptors_.size() ? descriptors_[matrix].first_member : member_entries_);
  }

  bool whole_block_rows() const;  ///< what is owned splits no block of any copy that is made
  bool whole() const;             ///< every element of every matrix is owned
  bool scales_travel() const;     ///< some matrix has `block_scales`
  const std::vector<quantizer::Descriptor>& descriptors() const { return descriptors_; }
  quantizer::TableView view() const;

 private:
  template <formats::Format F>
  void add(const QuantizedMatrix& matrix, quantizer::Claims& claims);
  template <formats::Format F>
  void add_tasks(const quantizer::Descriptor& d);
  void build_image();

  FormatId format_;
  DType values_type_ = DType::bf16;
  std::vector<quantizer::Descriptor> descriptors_;
  std::vector<quantizer::Task> owned_, all_, members_, owned_groups_, all_groups_, turned_;
  std::int64_t block_entries_ = 0, member_entries_ = 0;
  std::vector<std::byte> image_;
  std::byte* memory_ = nullptr;
};

namespace quantizer {

/// One matrix, all of it owned, as a table whose description travels with the launch: of factors of products, which
/// change from call to call. Nothing is allocated; scratch is the stream's. Throws as QuantizeTable does, but for
/// buffers that overlap.
TableView view_of_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix,
                      Contents contents = Contents::codes);
/// Of the members of a matrix whose copies lie apart: the first one, and all areas of all, for member_apart().
TableView view_of_apart(FormatId format, const QuantizedMatrix& matrix, std::span<const Copy> copies, Side side,
                        Apart& apart);

}  // namespace quantizer

}  // namespace tessera
