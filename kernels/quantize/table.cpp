#include "kernels/quantize/table.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <tuple>

#include "kernels/quantize/claims.hpp"

namespace tessera {

using formats::Matrix;
using quantizer::Descriptor;

namespace {

std::string described(const QuantizedMatrix& m) {
  return (m.name.empty() ? "unnamed tensor" : m.name) + " " + Shape{m.members, m.matrix.rows, m.matrix.columns}.text();
}
[[noreturn]] void refuse(const QuantizedMatrix& m, std::string_view format, const std::string& rule) {
  throw Error(Exit::internal, std::string(format) + ": " + described(m) + ": " + rule);
}

// Checks one matrix against a format; every rule has its own message.
class Check {
 public:
  Check(const FormatTraits& format, const QuantizedMatrix& m, quantizer::Claims* claims)
      : format_(format), m_(m), claims_(claims) {
    std::int64_t elements = 0, span = 0;
    expect(m.matrix.rows >= 0 && m.matrix.columns >= 0 && m.members >= 0, "sizes are not negative");
    expect(
        !__builtin_mul_overflow(m.matrix.rows, m.matrix.columns, &elements) &&
            !__builtin_mul_overflow(std::max(elements, m.member_stride), std::max<std::int64_t>(m.members, 1), &span) &&
            span < std::numeric_limits<std::int64_t>::max() / 16,
        "more elements than an index holds");
    expect(m.member_stride == 0 || m.member_stride >= elements,
           "members overlap: member_stride is less than one member");
    stride_ = m.member_stride == 0 ? elements : m.member_stride;
    span_ = m.members == 0 ? 0 : (m.members - 1) * stride_ + elements;
  }

  void values() {
    expect(m_.values.type == DType::bf16 || m_.values.type == DType::f32, "values are bf16 or f32");
    expect(m_.begin.value >= 0 && m_.begin.value + count() <= span_, "values lie outside the matrix");
    expect(m_.values || count() == 0, "values: no buffer");
    const std::int64_t size = size_of(m_.values.type);
    check_buffer(m_.values, count() * size, size, "values");
    if (count() == 0) return;
    each_member([&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = std::max(begin, m_.begin.value), last = std::min(end, m_.begin.value + count());
      if (first < last) claim(quantizer::Use::reads, m_.values, (first - m_.begin.value) * size, (last - first) * size);
    });
  }

  void side(Side side, const Copy& copy) {
    const bool shares =
        side == Side::columnwise && format_.columnwise == formats::Columnwise::shared && m_.rowwise.data;
    if (!copy.data && !copy.scales) return;
    takes(side);
    expect(stride_ * format_.bits % 8 == 0, "members begin at whole bytes");
    if (shares) {
      expect(!copy.data || copy.data.data == m_.rowwise.data.data, "the columnwise data is the rowwise data itself");
    } else {
      check_buffer(copy.data, format_.data_bytes(span_), static_cast<std::size_t>(size_of(format_.data_type)), "data");
      each_member([&](std::int64_t begin, std::int64_t end) {
        claim(quantizer::Use::writes, copy.data, format_.data_bytes(begin), format_.data_bytes(end - begin));
      });
    }
    const std::int64_t entries = m_.members * format_.padded_extent(side, m_.matrix).elements();
    if (format_.scaled && (copy.scales || !m_.block_scales))
      buffer(copy.scales, entries * format_.scale_bytes, format_.scale_bytes, "scales");
    amax(side, copy);
    if (format_.scaled && copy.swizzled) buffer(copy.swizzled, entries * format_.scale_bytes, 1, "swizzled scales");
  }

  /// A copy of bf16 factors.
  void factors(Side side, const Copy& copy) {
    if (!copy.data) return;
    takes(side);
    expect(copy.data.type == DType::bf16 && !copy.scales, "factors are bf16, without scales");
    buffer(copy.data, span_ * size_of(DType::bf16), size_of(DType::bf16), "factors");
    amax(side, copy);
  }

  void block_scales() {
    if (!m_.block_scales) return;
    expect(format_.scaled && format_.block.rows == format_.block.columns,
           "only square blocks have scales that travel alone");
    buffer(m_.block_scales,
           m_.members * format_.blocks(Side::rowwise, m_.matrix).elements() * format_.scale_bytes,
           format_.scale_bytes, "block scales");
  }

  void draws() {
    if (m_.draws.step) {
      expect(m_.draws.step.type == DType::u64 && m_.draws.step.elements() == 1, "a step is one u64");
      claim(quantizer::Use::reads, m_.draws.step, 0, size_of(DType::u64));
    }
    if (!m_.draws.rows) return;
    expect(m_.draws.rows.type == DType::i64, "row indices are i64");
    const std::int64_t bytes = m_.members * m_.matrix.rows * 8;
    check_buffer(m_.draws.rows, bytes, 8, "row indices");
    claim(quantizer::Use::reads, m_.draws.rows, 0, bytes);
  }

  void not_finite() const {
    if (!m_.not_finite) return;
    expect(m_.not_finite.type == DType::u64 && m_.not_finite.elements() == 1, "the word of what is not finite is u64");
    expect(m_.values.type == DType::bf16, "what is not finite is looked for in bf16 alone");
  }

  void rows_end() const {
    if (!m_.rows_end) return;
    expect(m_.rows_end.type == DType::i32 && m_.rows_end.elements() == 1, "the end of the rows in use is one i32");
    expect(m_.members == 1, "of one matrix only do the rows in use end before the last");
  }

  std::int64_t stride() const { return stride_; }
  /// Number of owned elements; 0 for a tensor that was never set.
  std::int64_t count() const { return m_.values || m_.values.shape.rank() > 0 ? m_.values.elements() : 0; }

 private:
  void expect(bool holds, const std::string& rule) const {
    if (!holds) refuse(m_, format_.name, rule);
  }
  void takes(Side side) const {
    if (format_.takes(side, m_.matrix)) return;
    const formats::Block b = format_.block_of(side);
    expect(format_.ragged || (m_.matrix.rows % b.rows == 0 && m_.matrix.columns % b.columns == 0),
           std::string(name_of(side)) + " needs rows divisible by " + std::to_string(b.rows) + " and columns by " +
               std::to_string(b.columns));
    expect(false, std::string(name_of(side)) + " needs lines of whole bytes");
  }
  void amax(Side side, const Copy& copy) {
    const bool shared = side == Side::columnwise && copy.amax.data == m_.rowwise.amax.data && copy.amax;
    if (format_.tensor_amax && (format_.by_lines || !shared))
      buffer(copy.amax, m_.members * format_.amaxes(side, m_.matrix) * 4, 4, "amax");
  }
  void check_buffer(const Tensor& t, std::int64_t bytes, std::size_t alignment, const char* what) const {
    expect(t.data != nullptr || bytes == 0, std::string(what) + ": no buffer");
    const std::int64_t held = t ? t.bytes() : 0;
    expect(held == bytes,
           std::string(what) + ": " + std::to_string(held) + " bytes instead of " + std::to_string(bytes));
    expect(reinterpret_cast<std::uintptr_t>(t.data) % alignment == 0, std::string(what) + ": misaligned");
  }
  void claim(quantizer::Use use, const Tensor& t, std::int64_t offset, std::int64_t bytes) {
    const bool elsewhere = m_.buffers == Buffers::owned && use == quantizer::Use::writes;  // mostly not its memory
    if (claims_ && !elsewhere) claims_->add(use, static_cast<const std::byte*>(t.data) + offset, bytes);
  }
  void buffer(const Tensor& t, std::int64_t bytes, std::size_t alignment, const char* what) {
    check_buffer(t, bytes, alignment, what);
    claim(quantizer::Use::writes, t, 0, bytes);
  }
  /// Calls f(first position, end) for every member, or once for all if they touch. Gaps belong to others.
  template <class Piece>
  void each_member(const Piece& f) const {
    if (stride_ == m_.matrix.elements()) return f(0, span_);
    for (std::int64_t e = 0; e < m_.members; ++e) f(e * stride_, e * stride_ + m_.matrix.elements());
  }

  const FormatTraits& format_;
  const QuantizedMatrix& m_;
  quantizer::Claims* claims_;  ///< null: overlaps are not looked for
  std::int64_t stride_ = 0, span_ = 0;
};

quantizer::Addresses place_of(const FormatTraits& format, const Copy& copy) {
  return {static_cast<std::byte*>(copy.data.data), format.scaled ? copy.scales.data : nullptr,
          static_cast<float*>(copy.amax.data), static_cast<std::uint8_t*>(copy.swizzled.data)};
}

Matrix patches_of(Matrix m) {
  return {formats::tiles_along(m.rows, quantizer::patch_edge), formats::tiles_along(m.columns, quantizer::patch_edge)};
}

quantizer::Alignment alignment_of(const FormatTraits& format, const Descriptor& d, std::int64_t value_bytes,
                                  Contents contents) {
  const auto fits = [&](const std::byte* first, std::int64_t line, std::int64_t bits, std::int64_t moved) {
    const std::int64_t bytes = moved * bits / 8;
    return (reinterpret_cast<std::intptr_t>(first) | line * bits / 8 | d.stride * bits / 8) % bytes == 0;
  };
  const bool factors = contents == Contents::factors;
  const std::int64_t code = factors ? 16 : format.bits;
  const bool turned = !factors && format.columnwise_order == formats::Order::transposed;
  return {(reinterpret_cast<std::intptr_t>(d.values - d.begin * value_bytes) | d.matrix.columns * value_bytes |
           d.stride * value_bytes) %
                  16 ==
              0,
          fits(d.side[0].data, d.matrix.columns, code, std::max<std::int64_t>(8, 64 / code)),
          fits(d.side[1].data, turned ? d.matrix.rows : d.matrix.columns, code, turned ? 16 : 8)};
}

// Patch rows, of all members, that hold an owned element, as {first, count}.
std::pair<std::int64_t, std::int64_t> owned_strips(const Descriptor& d) {
  const std::int64_t elements = d.matrix.elements();
  if (elements == 0 || d.begin >= d.end) return {0, 0};
  std::int64_t first = d.begin / d.stride, last = (d.end - 1) / d.stride;
  std::int64_t from = d.begin - first * d.stride;
  if (from >= elements) {
    ++first;
    from = 0;
  }
  const std::int64_t to = std::min(d.end - 1 - last * d.stride, elements - 1);
  const std::int64_t first_strip = first * d.patches.rows + from / d.matrix.columns / quantizer::patch_edge;
  const std::int64_t last_strip = last * d.patches.rows + to / d.matrix.columns / quantizer::patch_edge;
  return {first_strip, std::max<std::int64_t>(last_strip - first_strip + 1, 0)};
}

void expect_indices(const QuantizedMatrix& m, const Descriptor& d) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (d.members > most || d.patches.rows > most || d.patches.columns > most ||
      d.patches.elements() > most / std::max<std::int64_t>(d.members, 1))
    refuse(m, "quantize", "more patches than one launch takes");
}

// The descriptor of a checked matrix, without its place in a table.
Descriptor described_by(const FormatTraits& format, const QuantizedMatrix& m, quantizer::Claims* claims,
                        Contents contents = Contents::codes) {
  Check check(format, m, claims);
  check.values();
  if (contents == Contents::factors) {
    check.factors(Side::rowwise, m.rowwise);
    check.factors(Side::columnwise, m.columnwise);
  } else {
    check.side(Side::rowwise, m.rowwise);
    check.side(Side::columnwise, m.columnwise);
  }
  check.block_scales();
  check.draws();
  check.not_finite();
  check.rows_end();
  Descriptor d{};
  d.matrix = m.matrix;
  d.members = m.members;
  d.stride = check.stride();
  d.values = static_cast<std::byte*>(m.values.data);
  d.begin = m.begin.value;
  d.end = m.begin.value + check.count();
  d.patches = patches_of(m.matrix);
  d.side[0] = place_of(format, m.rowwise);
  d.side[1] = place_of(format, m.columnwise);
  if (format.columnwise == formats::Columnwise::shared && d.side[0].data && d.side[1].scales)
    d.side[1].data = d.side[0].data;
  d.block_scales = m.block_scales.data;
  d.seed = m.draws.seed;
  d.draws[0] = m.draws.rowwise;
  d.draws[1] = m.draws.columnwise;
  d.step = static_cast<const std::uint64_t*>(m.draws.step.data);
  d.first_row = m.draws.first_row;
  d.rows = static_cast<const std::int64_t*>(m.draws.rows.data);
  d.rows_end = static_cast<const std::int32_t*>(m.rows_end.data);
  d.not_finite = static_cast<std::uint64_t*>(m.not_finite.data);
  std::tie(d.first_patch_row, d.patch_rows) = owned_strips(d);
  d.aligned = alignment_of(format, d, size_of(m.values.type), contents);
  expect_indices(m, d);
  return d;
}

// All areas of a matrix, as a counted list.
quantizer::Units counted(const Descriptor& d, quantizer::Area area) {
  const std::int64_t rows = area.rows / quantizer::patch_edge, columns = area.columns / quantizer::patch_edge;
  const std::int64_t down = (d.patches.rows + rows - 1) / rows, across = (d.patches.columns + columns - 1) / columns;
  const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(std::max<std::int64_t>(n, 1)); };
  return {nullptr, d.members * down * across, narrow(down), narrow(across), narrow(rows), narrow(columns)};
}

}  // namespace

void QuantizeTable::add(const FormatTraits& format, const QuantizedMatrix& m, quantizer::Claims& claims) {
  Descriptor d = described_by(format, m, &claims);
  claims.close(d.begin, d.end);
  d.first_block = block_entries_;
  d.first_member = member_entries_;
  if (formats::agrees_on_blocks(format.agreement))
    block_entries_ += m.members * format.blocks(Side::rowwise, m.matrix).elements();
  if (format.tensor_amax) member_entries_ += m.members;
  d.first_task = static_cast<std::int64_t>(owned_.size());
  add_tasks(format, d);
  descriptors_.push_back(d);
}

void QuantizeTable::add_tasks(const FormatTraits& format, const Descriptor& d) {
  const auto entry = static_cast<std::int32_t>(descriptors_.size());
  // Adds the areas that hold a row of patch rows [begin, end); patch rows are numbered through all members.
  const auto add_rows = [&](std::vector<quantizer::Task>& tasks, std::int64_t begin, std::int64_t end,
                            quantizer::Area area) {
    const std::int64_t down = area.rows / quantizer::patch_edge, across = area.columns / quantizer::patch_edge;
    for (std::int64_t strip = begin; strip < end;) {
      const std::int64_t row = strip % d.patches.rows, first = row / down * down;
      for (std::int64_t column = 0; column < d.patches.columns; column += across)
        tasks.push_back({entry, static_cast<std::int32_t>(strip / d.patches.rows), static_cast<std::int32_t>(first),
                         static_cast<std::int32_t>(column)});
      strip += std::min(first + down, d.patches.rows) - row;
    }
  };
  const std::int64_t owned_end = d.first_patch_row + d.patch_rows, end = d.members * d.patches.rows;
  add_rows(owned_, d.first_patch_row, owned_end, quantizer::one_patch);
  add_rows(all_, 0, end, quantizer::one_patch);
  if (format.scaled) {
    add_rows(owned_groups_, d.first_patch_row, owned_end, quantizer::scale_area(format));
    add_rows(all_groups_, 0, end, quantizer::scale_area(format));
  }
  for (std::int32_t member = 0; member < d.members; ++member) members_.push_back({entry, member, 0, 0});
  if (format.columnwise == formats::Columnwise::transposed) {
    const quantizer::Area area = quantizer::turned_area(format);
    for (std::int32_t member = 0; member < d.members; ++member)
      for (std::int32_t column = 0; column < d.patches.columns; column += area.columns / quantizer::patch_edge)
        for (std::int32_t row = 0; row < d.patches.rows; row += area.rows / quantizer::patch_edge)
          turned_.push_back({entry, member, row, column});
  }
}

QuantizeTable::QuantizeTable(FormatId format, std::span<const QuantizedMatrix> matrices) : format_(format) {
  if (!matrices.empty()) values_type_ = matrices.front().values.type;
  const FormatTraits traits = traits_of(format);
  quantizer::Claims claims;
  for (const QuantizedMatrix& m : matrices) {
    if (m.values.type != values_type_) refuse(m, traits.name, "values of one table have one type");
    add(traits, m, claims);
  }
  if (const auto pair = claims.conflict()) {
    const auto &later = matrices[static_cast<std::size_t>(pair->first)],
               &earlier = matrices[static_cast<std::size_t>(pair->second)];
    refuse(later, traits.name,
           &later == &earlier ? "buffers overlap" : "buffers overlap those of " + described(earlier));
  }
  build_image();
}

// Behind the lists: scratch for each owned patch's largest magnitude, rowwise and columnwise.
void QuantizeTable::build_image() {
  append(std::span<const Descriptor>(descriptors_));
  for (const auto* list : {&owned_, &all_, &members_, &owned_groups_, &all_groups_, &turned_})
    append(std::span<const quantizer::Task>(*list));
  append_zeros(2 * owned_.size() * sizeof(float) + sizeof(std::int64_t));
}

quantizer::TableView QuantizeTable::view() const {
  const auto* tasks = reinterpret_cast<const quantizer::Task*>(memory() + descriptors_.size() * sizeof(Descriptor));
  const auto next = [&](const std::vector<quantizer::Task>& list) {
    const quantizer::Units units{tasks, static_cast<std::int64_t>(list.size())};
    tasks += list.size();
    return units;
  };
  quantizer::TableView view;
  view.items = reinterpret_cast<const Descriptor*>(memory());
  view.owned = next(owned_);
  view.all = next(all_);
  view.members = next(members_);
  view.owned_groups = next(owned_groups_);
  view.all_groups = next(all_groups_);
  view.turned = next(turned_);
  view.largest[0] = const_cast<float*>(reinterpret_cast<const float*>(tasks));
  view.largest[1] = view.largest[0] + owned_.size();
  return view;
}

quantizer::TableView quantizer::view_of_one(Stream& stream, FormatId format, const QuantizedMatrix& m,
                                            Contents contents) {
  const FormatTraits traits = traits_of(format);
  TableView view;
  Descriptor& d = view.one = described_by(traits, m, nullptr, contents);
  d.column_sums = m.column_sums.as<float>();
  view.owned = view.all = counted(d, one_patch);
  view.members = {nullptr, d.members};
  if (traits.scaled) view.owned_groups = view.all_groups = counted(d, scale_area(traits));
  if (traits.tensor_amax && !traits.by_lines) {
    const std::int64_t bytes = view.owned.count * static_cast<std::int64_t>(sizeof(float));
    std::byte* const scratch = stream.workspace("largest of patches", 2 * bytes);
    view.largest[0] = reinterpret_cast<float*>(scratch);
    view.largest[1] = reinterpret_cast<float*>(scratch + bytes);
  }
  return view;
}

quantizer::TableView quantizer::view_of_apart(FormatId format, const QuantizedMatrix& matrix,
                                              std::span<const Copy> copies, Side side, Apart& apart) {
  const FormatTraits traits = traits_of(format);
  TableView view;
  QuantizedMatrix one = matrix;
  one.members = 1;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::int64_t elements = matrix.matrix.elements();
    one.values = matrix.values.flat(static_cast<std::int64_t>(i) * elements, elements);
    (side == Side::rowwise ? one.rowwise : one.columnwise) = copies[i];
    const Descriptor d = described_by(traits, one, nullptr);
    if (i == 0) view.one = d;
    apart.at[i] = d.side[static_cast<int>(side)];
  }
  view.all = counted(view.one, one_patch);
  view.all.count *= std::ssize(copies);
  return view;
}

namespace {

/// Whether what is owned of a matrix consists of whole blocks of every copy that is made.
bool owns_whole_block_rows(const Descriptor& d, formats::Block block) {
  const std::int64_t elements = d.matrix.elements();
  if (elements == 0) return true;
  const auto splits = [&](std::int64_t position, const quantizer::Addresses& copy, int rows) {
    const std::int64_t inside = position % d.stride;
    return (copy.data || copy.scales) && inside < elements && inside % (rows * d.matrix.columns) != 0;
  };
  return std::ranges::none_of(std::array{d.begin, d.end}, [&](std::int64_t cut) {
    return splits(cut, d.side[0], block.rows) || splits(cut, d.side[1], block.columns);
  });
}

}  // namespace

bool QuantizeTable::whole_block_rows() const {
  const formats::Block block = traits_of(format_).block;
  return std::ranges::all_of(descriptors_, [&](const Descriptor& d) { return owns_whole_block_rows(d, block); });
}

bool QuantizeTable::whole_block_rows_where_scales_travel() const {
  const formats::Block block = traits_of(format_).block;
  return std::ranges::all_of(
      descriptors_, [&](const Descriptor& d) { return !d.block_scales || owns_whole_block_rows(d, block); });
}

bool QuantizeTable::whole() const {
  return std::all_of(descriptors_.begin(), descriptors_.end(), [](const Descriptor& d) {
    return d.members == 0 || (d.begin == 0 && d.end == (d.members - 1) * d.stride + d.matrix.elements());
  });
}

}  // namespace tessera
