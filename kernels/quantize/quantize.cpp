#include "kernels/quantize/quantize.hpp"

#include <algorithm>

#include "kernels/base/launch.hpp"
#include "kernels/quantize/back.hpp"
#include "kernels/quantize/described_back.hpp"
#include "kernels/quantize/source.hpp"

namespace tessera {
namespace {

using formats::Described;
using formats::is_described;
using quantizer::Amaxes;
using quantizer::Decoding;
using quantizer::Reading;

Reading reading_of(const QuantizeTable& table, Precision precision) {
  if (table.values_type() == DType::bf16) return Reading::bf16;
  return precision == Precision::bf16_first ? Reading::master : Reading::fp32;
}

void check_source(const QuantizeTable& table, Purpose purpose) {
  require(table.whole_block_rows(), "quantize", "what is owned must consist of whole rows of blocks");
  const FormatTraits format = traits_of(table.format());
  if (!format.hadamard) return;
  for (const quantizer::Descriptor& d : table.descriptors()) {
    require(d.step || !(purpose.draws && format.may_draw), "quantize",
            "gradients that are rounded at random need a step");
    require(!purpose.rotates || d.side[0].amax == nullptr || d.side[0].amax != d.side[1].amax, "quantize",
            "a rotated copy has an amax of its own");
  }
}

/// Counts, by purpose, the launches made during its lifetime.
class Counted {
 public:
  Counted(Stream& stream, Purpose purpose)
      : stream_(stream), counter_(counter_of(stream, purpose)), before_(stream.launches()) {}
  ~Counted() { counter_ += stream_.launches() - before_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  static std::int64_t& counter_of(Stream& stream, Purpose purpose) {
    auto& all = stream.library<QuantizeLaunches>();
    if (purpose.role == Purpose::Role::activation) return all.activations;
    return purpose.role == Purpose::Role::gradient ? all.gradients : all.weights;
  }

  Stream& stream_;
  std::int64_t& counter_;
  std::int64_t before_;
};

const std::uint16_t* bits(const Tensor& t) { return static_cast<const std::uint16_t*>(t.data); }

void check_one_pass(FormatId format, const QuantizedMatrix& matrix) {
  require(quantizes_in_one_pass(format) && matrix.members == 1, "quantize_one",
          "an activation or column sums of one matrix, of a format whose quantizer computes them on the way");
  require(matrix.values.type == DType::bf16, "quantize_one", "values are bf16");
  const Tensor& sums = matrix.column_sums;
  require(!sums || (sums.type == DType::f32 && sums.shape == column_sums_shape(matrix.matrix)), "quantize_one",
          "column sums are f32 [ceil(rows / 128), columns]");
}

Amaxes amaxes_of(const QuantizeTable& table, const Tensor& amaxes, const char* kernel) {
  require(amaxes.elements() == table.amax_entries() && (amaxes.type == DType::bf16 || table.amax_entries() == 0),
          kernel, "amaxes are bf16 [table.amax_entries()]");
  return {static_cast<std::uint16_t*>(amaxes.data), table.block_entries(), table.member_entries()};
}

}  // namespace

void quantizer::clear_lines(Stream& stream, const TableView& table) {
  launch(
      stream, "quantize: amax of no value", table.all.count * patch_edge, KOKKOS_LAMBDA(std::int64_t i) {
        const Task task = table.all[i / patch_edge];
        const Descriptor& d = table[task];
        const std::int64_t line = i % patch_edge, row = task.row * patch_edge + line,
                           column = task.column * patch_edge + line;
        if (d.side[0].amax && task.column == 0 && row < d.matrix.rows)
          d.side[0].amax[task.member * d.matrix.rows + row] = 0;
        if (d.side[1].amax && task.row == 0 && column < d.matrix.columns)
          d.side[1].amax[task.member * d.matrix.columns + column] = 0;
      });
}

void find_amax(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  check_source(table, purpose);
  const Counted counted(stream, purpose);
  quantizer::find_amax_by(stream, table.format(), table.view(), reading_of(table, precision), purpose);
}

void quantize_with_amax(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  check_source(table, purpose);
  const Counted counted(stream, purpose);
  quantizer::make_copies_by(stream, table.format(), table.view(), reading_of(table, precision), purpose);
}

void quantize(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  find_amax(stream, table, precision, purpose);
  quantize_with_amax(stream, table, precision, purpose);
}

void dequantize(Stream& stream, const QuantizeTable& table, Side side) {
  require(table.whole(), "dequantize", "values hold every element");
  quantizer::decode_by(stream, table.format(), table.view(), table.values_type(), side, Decoding::tensor);
}

void decode_factors(Stream& stream, const QuantizeTable& table, Side side) {
  require(table.whole() && table.values_type() == DType::bf16, "decode_factors", "values are bf16, every element");
  quantizer::decode_by(stream, table.format(), table.view(), DType::bf16, side, Decoding::factor);
}

namespace {

void check_one(FormatId format, const QuantizedMatrix& matrix, Purpose purpose, const char* kernel) {
  require(matrix.values.type == DType::bf16, kernel, "values are bf16");
  const bool random = traits_of(format).may_draw && purpose.draws;
  require(!random || matrix.draws.step.type == DType::u64, kernel, "gradients that are rounded at random need a step");
}

}  // namespace

void quantize_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose) {
  check_one(format, matrix, purpose, "quantize_one");
  if (matrix.column_sums) check_one_pass(format, matrix);
  const Reading reading = matrix.column_sums ? Reading::summed : Reading::bf16;
  const quantizer::TableView view = quantizer::view_of_one(stream, format, matrix);
  const Counted counted(stream, purpose);
  quantizer::find_amax_by(stream, format, view, reading, purpose);
  quantizer::make_copies_by(stream, format, view, reading, purpose);
}

bool quantizes_in_one_pass(FormatId format) {
  return !is_described(format) && visit_format(format, []<class F>() { return quantizer::one_pass<F>; });
}

void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const Gelu& x) {
  matrix.values = x.pre;
  check_one_pass(format, matrix);
  const quantizer::TableView view = quantizer::view_of_one(stream, format, matrix);
  const Counted counted(stream, Purpose::activation);
  quantizer::make_copies(stream, format, view, Reading::gelu, Purpose::activation);
}

void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const GeluGradient& dx) {
  require(dx.pre.type == DType::bf16 && dx.pre.shape == dx.dy.shape, "quantize_one", "pre has the shape of dy");
  matrix.values = dx.dy;
  check_one_pass(format, matrix);
  quantizer::TableView view = quantizer::view_of_one(stream, format, matrix);
  view.one.pre = bits(dx.pre);
  view.one.aligned.values = view.one.aligned.values && reinterpret_cast<std::uintptr_t>(dx.pre.data) % 16 == 0;
  const Counted counted(stream, Purpose::gradient);
  quantizer::make_copies(stream, format, view, Reading::gelu_gradient, Purpose::gradient);
}

void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const Swiglu& x) {
  const std::int64_t width = x.gate_up.columns() / 2;
  require(x.gate_up.columns() == 2 * width && fits_swiglu(width), "quantize_one",
          "gate_up is [M,2F], F a multiple of 128");
  matrix.values = {x.gate_up.data, x.gate_up.type, {x.gate_up.rows(), width}};  // its shape: gates and ups are pre
  check_one_pass(format, matrix);
  quantizer::TableView view = quantizer::view_of_one(stream, format, matrix);
  view.one.pre = bits(x.gate_up);
  const Counted counted(stream, Purpose::activation);
  quantizer::make_copies(stream, format, view, Reading::swiglu, Purpose::activation);
}

void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const SwigluGradient& dx) {
  const std::int64_t width = dx.dy.columns();
  require(dx.dy.type == DType::bf16 && dx.gate_up.columns() == 2 * width && dx.gate_up.rows() == dx.dy.rows() &&
              fits_swiglu(width),
          "quantize_one", "gate_up is [M,2F] and dy [M,F], F a multiple of 128");
  matrix.values = dx.gate_up;
  check_one_pass(format, matrix);
  quantizer::TableView view = quantizer::view_of_one(stream, format, matrix);
  view.one.pre = bits(dx.dy);
  view.one.aligned.values = view.one.aligned.values && reinterpret_cast<std::uintptr_t>(dx.dy.data) % 16 == 0;
  const Counted counted(stream, Purpose::gradient);
  quantizer::make_copies(stream, format, view, Reading::swiglu_gradient, Purpose::gradient);
}

void make_factors(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose) {
  check_one(format, matrix, purpose, "make_factors");
  require(quantizer::has_factors(format), "make_factors", "blocks run along one dimension, or there are none");
  const Counted counted(stream, purpose);
  if (is_described(format)) return quantizer::make_factors_by_codes(stream, format, matrix, purpose);
  quantizer::make_factors(stream, format, matrix, purpose);
}

void decode_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Side side) {
  require(matrix.values.type == DType::bf16, "decode_one", "values are bf16");
  const quantizer::TableView view = quantizer::view_of_one(stream, format, matrix);
  quantizer::decode_by(stream, format, view, DType::bf16, side, Decoding::factor);
}

void decode_apart(Stream& stream, FormatId format, const QuantizedMatrix& matrix, std::span<const Copy> copies,
                  Side side) {
  require(matrix.values.type == DType::bf16 && matrix.members == std::ssize(copies) && matrix.member_stride == 0 &&
              std::ssize(copies) <= decoded_at_once,
          "decode_apart", "values are bf16 and touch, one copy a member, no more than are decoded at once");
  if (copies.empty()) return;
  quantizer::Apart apart;
  const quantizer::TableView view = quantizer::view_of_apart(format, matrix, copies, side, apart);
  if (is_described(format))
    return quantizer::described::decode_factors_apart(stream, Described(format), view, apart, side);
  quantizer::decode_factors_apart(stream, format, view, apart, side);
}

void block_amax(Stream& stream, const QuantizeTable& table, const Tensor& amaxes) {
  const Amaxes out = amaxes_of(table, amaxes, "block_amax");
  require(traits_of(table.format()).agreement != formats::Agreement::nothing, "block_amax",
          "ranks agree on nothing for this format");
  const Counted counted(stream, Purpose::weight);
  const Reading reading = reading_of(table, Precision::bf16_first);
  if (is_described(table.format()))
    return quantizer::described::find_block_amaxes(stream, Described(table.format()), table.view(), reading, out);
  quantizer::find_block_amaxes(stream, table.format(), table.view(), reading, out);
}

namespace {

/// Writes the members' amaxes beside their copies.
void store_amaxes(Stream& stream, const quantizer::TableView& table, const Amaxes& amaxes) {
  launch(
      stream, "partial_cast: amaxes", table.members.count, KOKKOS_LAMBDA(std::int64_t i) {
        const quantizer::Task task = table.members[i];
        const quantizer::Descriptor& d = table[task];
        for (const quantizer::Addresses& copy : d.side)
          if (copy.amax)
            copy.amax[task.member] = quantizer::FromBf16::value(amaxes.members()[d.first_member + task.member]);
      });
}

/// partial_cast() of a format that chooses between encodings by the errors of whole blocks: what is owned is quantized.
void cast_whole_blocks(Stream& stream, const QuantizeTable& table, Reading reading, const Amaxes& amaxes) {
  const auto scales_travel = [](const quantizer::Descriptor& d) { return d.block_scales != nullptr; };
  require(table.whole_block_rows() && (table.whole() || std::ranges::all_of(table.descriptors(), scales_travel)),
          "partial_cast", "blocks of this format have one owner each, and their scales travel");
  store_amaxes(stream, table.view(), amaxes);
  quantizer::make_copies(stream, table.format(), table.view(), reading, Purpose::weight);
}

}  // namespace

void partial_cast(Stream& stream, const QuantizeTable& table, const Tensor& amaxes) {
  const Amaxes in = amaxes_of(table, amaxes, "partial_cast");
  const FormatTraits format = traits_of(table.format());
  require(table.whole_block_rows_where_scales_travel(), "partial_cast", "scales travel in whole rows of blocks only");
  require(format.plain || format.agreement != formats::Agreement::nothing, "partial_cast",
          "this format travels as bf16");
  const Counted counted(stream, Purpose::weight);
  const Reading reading = reading_of(table, Precision::bf16_first);
  if (format.chooses) return cast_whole_blocks(stream, table, reading, in);
  if (is_described(table.format()))
    return quantizer::described::cast_shards(stream, Described(table.format()), table.view(), reading, in);
  quantizer::cast_shards(stream, table.format(), table.view(), reading, in);
}

void build_columnwise(Stream& stream, const QuantizeTable& table) {
  const FormatTraits format = traits_of(table.format());
  if (format.plain) return;
  require(format.columnwise != formats::Columnwise::requantized, "build_columnwise",
          "this format's columnwise copy needs the source");
  const Counted counted(stream, Purpose::weight);
  if (is_described(table.format()))
    return quantizer::described::derive_columnwise(stream, Described(table.format()), table.view());
  quantizer::derive_columnwise(stream, table.format(), table.view());
}

namespace {

void require_swizzled(FormatId format) {
  const auto swizzles = []<class F>() { return formats::swizzles<F>(); };
  require(!is_described(format) && visit_format(format, swizzles), "swizzle_scales",
          "no block-scaled GEMM takes this format");
}

}  // namespace

void swizzle_scales(Stream& stream, const QuantizeTable& table) {
  require_swizzled(table.format());
  quantizer::swizzle(stream, table.format(), table.view());
}

void swizzle_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix) {
  require_swizzled(format);
  quantizer::swizzle(stream, format, quantizer::view_of_one(stream, format, matrix));
}

}  // namespace tessera
