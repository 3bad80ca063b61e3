#include "kernels/quantize/table.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace tessera {

using formats::Format;
using formats::Matrix;
using quantizer::Descriptor;

namespace {

[[noreturn]] void refuse(const QuantizedMatrix& m, std::string_view format, const std::string& rule) {
  throw Error(Exit::internal, std::string(format) + ": " + (m.name.empty() ? "unnamed tensor" : m.name) + " " +
                                  Shape{m.members, m.matrix.rows, m.matrix.columns}.text() + ": " + rule);
}

struct Range {
  const std::byte* begin;
  const std::byte* end;
};

// The checks of one matrix of format F, each with its own message.
template <Format F>
class Check {
 public:
  explicit Check(const QuantizedMatrix& m) : m_(m) {
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
    expect(stride_ * F::Element::bits % 8 == 0, "members begin at whole bytes");
  }

  void values() {
    expect(m_.values.type == DType::bf16 || m_.values.type == DType::f32, "values are bf16 or f32");
    expect(m_.begin.value >= 0 && m_.begin.value + count() <= span_, "values lie outside the matrix");
    buffer(m_.values, count() * size_of(m_.values.type), size_of(m_.values.type), "values");
  }

  void side(Side side, const Copy& copy) {
    const bool shares = side == Side::columnwise && F::columnwise == formats::Columnwise::shared;
    if (!copy.data && !copy.scales) return;
    if (!formats::takes<F>(side, m_.matrix)) {
      const formats::Block b = formats::block_of<F>(side);
      expect(false, std::string(name_of(side)) + " needs rows divisible by " + std::to_string(b.rows) +
                        " and columns by " + std::to_string(b.columns));
    }
    if (shares)
      expect(!copy.data || copy.data.data == m_.rowwise.data.data, "the columnwise data is the rowwise data itself");
    else
      buffer(copy.data, formats::data_bytes<F>(span_), sizeof(typename F::Element::Storage), "data");
    if (!F::scaled) return;
    const std::int64_t entries = m_.members * formats::padded_extent<F>(side, m_.matrix).elements();
    buffer(copy.scales, entries * sizeof(typename F::Scale), sizeof(typename F::Scale), "scales");
    if (F::tensor_amax && !(side == Side::columnwise && copy.amax.data == m_.rowwise.amax.data && copy.amax))
      buffer(copy.amax, m_.members * 4, 4, "amax");
    if (copy.swizzled) buffer(copy.swizzled, entries * sizeof(typename F::Scale), 1, "swizzled scales");
  }

  void block_scales() {
    if (!m_.block_scales) return;
    expect(F::block.rows == F::block.columns, "only square blocks have scales that travel alone");
    buffer(m_.block_scales,
           m_.members * formats::blocks<F>(Side::rowwise, m_.matrix).elements() * sizeof(typename F::Scale),
           sizeof(typename F::Scale), "block scales");
  }

  void rows() {
    if (!m_.draws.rows) return;
    expect(m_.draws.rows.type == DType::i64, "row indices are i64");
    buffer(m_.draws.rows, m_.members * m_.matrix.rows * 8, 8, "row indices");
  }

  void overlaps() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < ranges_.size(); ++i) expect(ranges_[i - 1].end <= ranges_[i].begin, "buffers overlap");
  }

  std::int64_t stride() const { return stride_; }
  /// Owned elements; an empty tensor holds none.
  std::int64_t count() const { return m_.values ? m_.values.elements() : 0; }

 private:
  void expect(bool holds, const std::string& rule) const {
    if (!holds) refuse(m_, F::name, rule);
  }
  void buffer(const Tensor& t, std::int64_t bytes, std::size_t alignment, const char* what) {
    expect(t.data != nullptr || bytes == 0, std::string(what) + ": no buffer");
    const std::int64_t held = t ? t.bytes() : 0;
    expect(held == bytes,
           std::string(what) + ": " + std::to_string(held) + " bytes instead of " + std::to_string(bytes));
    expect(reinterpret_cast<std::uintptr_t>(t.data) % alignment == 0, std::string(what) + ": misaligned");
    const auto* begin = static_cast<const std::byte*>(t.data);
    if (bytes > 0) ranges_.push_back({begin, begin + bytes});
  }

  const QuantizedMatrix& m_;
  std::int64_t stride_ = 0, span_ = 0;
  std::vector<Range> ranges_;
};

quantizer::Place place_of(const Copy& copy) {
  return {static_cast<std::byte*>(copy.data.data), copy.scales.data, static_cast<float*>(copy.amax.data),
          static_cast<std::uint8_t*>(copy.swizzled.data)};
}

Matrix patches_of(Matrix m) {
  return {formats::tiles_along(m.rows, quantizer::patch_edge), formats::tiles_along(m.columns, quantizer::patch_edge)};
}

// Patch rows of all members that hold an owned element, as {first, count}.
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

}  // namespace

template <Format F>
void QuantizeTable::add(const QuantizedMatrix& m) {
  Check<F> check(m);
  check.values();
  check.side(Side::rowwise, m.rowwise);
  check.side(Side::columnwise, m.columnwise);
  check.block_scales();
  check.rows();
  check.overlaps();
  Descriptor d{};
  d.matrix = m.matrix;
  d.members = m.members;
  d.stride = check.stride();
  d.values = static_cast<std::byte*>(m.values.data);
  d.begin = m.begin.value;
  d.end = m.begin.value + check.count();
  d.patches = patches_of(m.matrix);
  d.side[0] = place_of(m.rowwise);
  d.side[1] = place_of(m.columnwise);
  if (F::columnwise == formats::Columnwise::shared && d.side[1].scales) d.side[1].data = d.side[0].data;
  d.block_scales = m.block_scales.data;
  d.keys[0] = m.draws.rowwise;
  d.keys[1] = m.draws.columnwise;
  d.first_row = m.draws.first_row;
  d.rows = static_cast<const std::int64_t*>(m.draws.rows.data);
  d.first_block = block_entries_;
  d.first_member = member_entries_;
  if (F::agreement != formats::Agreement::nothing)
    block_entries_ += m.members * formats::blocks<F>(Side::rowwise, m.matrix).elements();
  if (F::tensor_amax) member_entries_ += m.members;
  const auto [strip, strips] = owned_strips(d);
  d.first_patch_row = strip;
  owned_.push_back(owned_.back() + strips * d.patches.columns);
  all_.push_back(all_.back() + m.members * d.patches.elements());
  members_.push_back(members_.back() + m.members);
  descriptors_.push_back(d);
}

QuantizeTable::QuantizeTable(FormatId format, std::span<const QuantizedMatrix> matrices) : format_(format) {
  if (!matrices.empty()) values_type_ = matrices.front().values.type;
  visit_format(format, [&]<class F>() {
    for (const QuantizedMatrix& m : matrices) {
      if (m.values.type != values_type_) refuse(m, F::name, "values of one table have one type");
      add<F>(m);
    }
  });
  require(all_.back() < std::numeric_limits<int>::max(), "QuantizeTable", "more patches than one launch takes");
  build_image();
}

// Descriptors, the three prefix sums, then scratch for the largest magnitude of every owned patch, rowwise and
// columnwise.
void QuantizeTable::build_image() {
  const std::size_t sums = owned_.size() * sizeof(std::int64_t), heads = descriptors_.size() * sizeof(Descriptor);
  image_.resize(heads + 3 * sums + 2 * static_cast<std::size_t>(owned_.back()) * sizeof(float) + sizeof(std::int64_t));
  if (heads > 0) std::memcpy(image_.data(), descriptors_.data(), heads);
  std::memcpy(image_.data() + heads, owned_.data(), sums);
  std::memcpy(image_.data() + heads + sums, all_.data(), sums);
  std::memcpy(image_.data() + heads + 2 * sums, members_.data(), sums);
}

void QuantizeTable::place(const Tensor& memory) {
  require(memory.bytes() == bytes(), "QuantizeTable::place", "the memory has bytes() bytes");
  memory_ = static_cast<std::byte*>(memory.data);
}

quantizer::TableView QuantizeTable::view() const {
  require(memory_ != nullptr, "QuantizeTable", "not placed in device memory");
  const int count = static_cast<int>(descriptors_.size());
  const auto* sums = reinterpret_cast<const std::int64_t*>(memory_ + descriptors_.size() * sizeof(Descriptor));
  const std::size_t step = owned_.size();
  auto* largest =
      reinterpret_cast<float*>(memory_ + descriptors_.size() * sizeof(Descriptor) + 3 * step * sizeof(std::int64_t));
  return {reinterpret_cast<const Descriptor*>(memory_),
          {sums, count},
          {sums + step, count},
          {sums + 2 * step, count},
          owned_.back(),
          all_.back(),
          members_.back(),
          {largest, largest + owned_.back()}};
}

bool QuantizeTable::whole_block_rows() const {
  const formats::Block block = traits_of(format_).block;
  return std::all_of(descriptors_.begin(), descriptors_.end(), [&](const Descriptor& d) {
    const std::int64_t elements = d.matrix.elements();
    if (elements == 0) return true;
    const auto splits = [&](std::int64_t position, const quantizer::Place& copy, int rows) {
      const std::int64_t inside = position % d.stride;
      return (copy.data || copy.scales) && inside < elements && inside % (rows * d.matrix.columns) != 0;
    };
    for (const std::int64_t cut : {d.begin, d.end})
      if (splits(cut, d.side[0], block.rows) || splits(cut, d.side[1], block.columns)) return false;
    return true;
  });
}

bool QuantizeTable::whole() const {
  return std::all_of(descriptors_.begin(), descriptors_.end(), [](const Descriptor& d) {
    return d.members == 0 || (d.begin == 0 && d.end == (d.members - 1) * d.stride + d.matrix.elements());
  });
}

bool QuantizeTable::scales_travel() const {
  return std::any_of(descriptors_.begin(), descriptors_.end(),
                     [](const Descriptor& d) { return d.block_scales != nullptr; });
}

}  // namespace tessera
