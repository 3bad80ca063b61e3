#include "io/convert/tensor_quantizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/device/device.hpp"

namespace tessera {
namespace {

using formats::Matrix;
using formats::Order;

/// Panels end at multiples of this many rows and columns, so that each fills whole padded tiles of every array.
constexpr std::int64_t panel_step = 512;

/// A rectangle of one member: the piece that is quantized at a time.
struct Panel {
  std::int64_t row, column;
  Matrix size;
};

/// Size of a panel of about `elements` elements: whole rows if they are short enough, else parts of rows.
Matrix largest_panel(Matrix m, std::int64_t elements) {
  const auto steps = [](std::int64_t n) { return std::max(n / panel_step, std::int64_t{1}) * panel_step; };
  const std::int64_t columns = std::min(m.columns, steps(elements / std::min(m.rows, panel_step)));
  return {std::min(m.rows, steps(elements / columns)), columns};
}

/// A panel's rectangle `piece`, at (row, column), of an array of `whole` entries in a file.
struct Rectangle {
  Matrix whole, piece;
  std::int64_t row, column;
};

void write(PosixFile& file, std::int64_t offset, const Rectangle& r, std::int64_t entry_bits,
           const std::vector<std::byte>& bytes) {
  const auto size = [&](std::int64_t entries) { return entries * entry_bits / 8; };
  const std::int64_t at = r.row * r.whole.columns + r.column;
  if (r.piece.columns == r.whole.columns) return file.write(offset + size(at), bytes.data(), size(r.piece.elements()));
  for (std::int64_t i = 0; i < r.piece.rows; ++i)
    file.write(offset + size(at + i * r.whole.columns), bytes.data() + size(i * r.piece.columns),
               size(r.piece.columns));
}

/// Statistics summed over panels and members.
struct Sums {
  double signal = 0, noise = 0, worst = 0;
  std::int64_t elements = 0, zeros = 0, saturated = 0, underflow = 0, non_finite = 0;
  float amax = 0;
};

/// Of a format of the registry, or a described one.
template <class F>
class TensorQuantizer {
 public:
  TensorQuantizer(const QuantizeStep& step, const F& format)
      : step_(step),
        format_(format),
        traits_(traits_of(step.tensor.format)),
        matrix_(step.tensor.matrix()),
        largest_(largest_panel(matrix_, step.options.panel_elements)) {
    const Matrix panel = largest_;
    values_ = buffer(step.tensor.source.type, panel.elements());
    decoded_ = buffer(DType::f32, panel.elements());
    for (Side side : {Side::rowwise, Side::columnwise}) {
      if (!made(side)) continue;
      Copy& copy = copies_[static_cast<std::size_t>(side)];
      copy.data = shares(side) ? copies_[0].data : buffer(DType::u8, traits_.data_bytes(panel.elements()));
      copy.scales = buffer(traits_.scale_type, traits_.padded_extent(side, panel).elements());
      if (traits_.tensor_amax) copy.amax = buffer(DType::f32, 1);
    }
  }

  TensorReport run() {
    std::vector<float> amaxes;
    for (std::int64_t e = 0; e < step_.tensor.members(); ++e) {
      const float amax = traits_.tensor_amax ? member_amax(e) : 0.0f;
      sums_.amax = 0;
      each_panel([&](const Panel& panel) { quantize_panel(e, panel, amax); });
      amaxes.push_back(sums_.amax);
      if (!traits_.scaled) ++exponents_[std::ilogb(format_.tensor_step(amax))];
    }
    step_.out.write(step_.places.amax, amaxes.data(), std::ssize(amaxes) * 4);
    return report();
  }

 private:
  bool made(Side side) const { return step_.places.sides[static_cast<std::size_t>(side)].made; }
  bool shares(Side side) const { return side == Side::columnwise && traits_.columnwise == formats::Columnwise::shared; }
  /// The copy whose quantization error is reported.
  Side judged() const { return made(Side::rowwise) ? Side::rowwise : Side::columnwise; }

  Tensor buffer(DType type, std::int64_t elements) { return device_.allocate(Category::staging, type, {elements}); }
  std::vector<std::byte> download(const Tensor& t) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(t.bytes()));
    device_.download(device_.compute(), bytes.data(), t);
    return bytes;
  }

  template <class Work>
  void each_panel(const Work& work) const {
    for (std::int64_t row = 0; row < matrix_.rows; row += largest_.rows)
      for (std::int64_t column = 0; column < matrix_.columns; column += largest_.columns)
        work(
            Panel{row,
                  column,
                  {std::min(largest_.rows, matrix_.rows - row), std::min(largest_.columns, matrix_.columns - column)}});
  }

  /// Rows of a panel that the source has: the others are padding.
  std::int64_t rows_read(const Panel& panel) const {
    return std::clamp<std::int64_t>(step_.tensor.source.shape[-2] - panel.row, 0, panel.size.rows);
  }

  /// Reads a panel of a member to host and device.
  void load(std::int64_t member, const Panel& panel) {
    const Tensor part = values_.flat(0, panel.size.elements());
    host_.assign(static_cast<std::size_t>(part.bytes()), std::byte{});
    const SourceTensor& source = step_.tensor.source;
    const std::int64_t first = (member * source.shape[-2] + panel.row) * matrix_.columns + panel.column;
    const bool whole_rows = panel.size.columns == matrix_.columns;
    const std::int64_t rows = rows_read(panel), pieces = whole_rows ? 1 : rows;
    const std::int64_t length = panel.size.columns * (whole_rows ? rows : 1);
    for (std::int64_t i = 0; i < pieces; ++i)
      read_elements(step_.in, source, first + i * matrix_.columns, length,
                    host_.data() + i * length * size_of(values_.type));
    device_.upload(device_.compute(), part, host_.data());
  }

  QuantizeTable table(Matrix panel, const Tensor& values) {
    QuantizedMatrix m;
    m.name = step_.tensor.source.name;
    m.matrix = panel;
    m.values = values;
    for (Side side : {Side::rowwise, Side::columnwise}) {
      if (!made(side)) continue;
      const Copy& whole = copies_[static_cast<std::size_t>(side)];
      Copy& copy = side == Side::rowwise ? m.rowwise : m.columnwise;
      copy.data = whole.data.flat(0, traits_.data_bytes(panel.elements()));
      copy.scales = whole.scales.flat(0, traits_.padded_extent(side, panel).elements());
      copy.amax = whole.amax;
    }
    QuantizeTable made_table(step_.tensor.format, std::vector{m});
    if (made_table.bytes() > table_memory_.bytes() || !table_memory_)
      table_memory_ = buffer(DType::u8, made_table.bytes());
    made_table.bind(table_memory_.flat(0, made_table.bytes()));
    device_.upload(device_.compute(), made_table);
    return made_table;
  }

  float member_amax(std::int64_t member) {
    float most = 0;
    const Copy& copy = copies_[static_cast<std::size_t>(judged())];
    each_panel([&](const Panel& panel) {
      load(member, panel);
      find_amax(device_.compute(), table(panel.size, values_.flat(0, panel.size.elements())), step_.options.precision);
      float amax = 0;
      device_.download(device_.compute(), &amax, copy.amax);
      most = std::max(most, amax);
    });
    return most;
  }

  void quantize_panel(std::int64_t member, const Panel& panel, float amax) {
    load(member, panel);
    const std::int64_t elements = panel.size.elements();
    for (const Copy& copy : copies_)
      if (copy.amax) device_.upload(device_.compute(), copy.amax, &amax);
    quantize_with_amax(device_.compute(), table(panel.size, values_.flat(0, elements)), step_.options.precision);
    for (Side side : {Side::rowwise, Side::columnwise})
      if (made(side)) write_side(side, member, panel);
    dequantize(device_.compute(), table(panel.size, decoded_.flat(0, elements)), judged());
    judge(panel);
  }

  void write_side(Side side, std::int64_t member, const Panel& panel) {
    const Copy& copy = copies_[static_cast<std::size_t>(side)];
    const QuantizedPlaces::Side& place = step_.places.sides[static_cast<std::size_t>(side)];
    const Order order = traits_.order_of(side);
    const bool turned = order == Order::transposed;
    const Rectangle data{formats::in_order(order, matrix_), formats::in_order(order, panel.size),
                         turned ? panel.column : panel.row, turned ? panel.row : panel.column};
    auto codes = download(copy.data.flat(0, traits_.data_bytes(panel.size.elements())));
    write(step_.out, place.data + member * traits_.data_bytes(matrix_.elements()), data, traits_.bits, codes);

    if (side == judged()) codes_ = std::move(codes);
    if (traits_.scaled) write_scales(side, member, panel);
  }

  void write_scales(Side side, std::int64_t member, const Panel& panel) {
    const Copy& copy = copies_[static_cast<std::size_t>(side)];
    const QuantizedPlaces::Side& place = step_.places.sides[static_cast<std::size_t>(side)];
    const formats::ScaleLayout layout = traits_.scale_layout(side);
    const formats::Block block = traits_.block_of(side);
    const std::int64_t row = panel.row / block.rows * layout.repeat.rows,
                       column = panel.column / block.columns * layout.repeat.columns;
    const Matrix whole = traits_.padded_extent(side, matrix_), piece = traits_.padded_extent(side, panel.size);
    const bool swapped = layout.order == formats::Order::transposed;
    auto scales = download(copy.scales.flat(0, piece.elements()));
    const std::int64_t scale_bytes = traits_.scale_bytes;
    write(step_.out, place.scales + member * whole.elements() * scale_bytes,
          {whole, piece, swapped ? column : row, swapped ? row : column}, 8 * scale_bytes, scales);
    if (side == judged()) scales_ = std::move(scales);
  }

  float source(std::int64_t i) const {
    if (values_.type == DType::bf16) return reinterpret_cast<const bf16*>(host_.data())[i];
    return reinterpret_cast<const float*>(host_.data())[i];
  }

  void judge(const Panel& part) {
    const Matrix panel = part.size;
    const std::int64_t rows = rows_read(part);
    const auto decoded = download(decoded_.flat(0, panel.elements()));
    const auto* q = reinterpret_cast<const float*>(decoded.data());
    const bool turned = traits_.order_of(judged()) == Order::transposed;
    const bool rounds = step_.options.precision == Precision::bf16_first;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < panel.columns; ++c) {
        const float x = source(r * panel.columns + c);
        const float seen = std::fabs(rounds ? float(bf16(x)) : x);
        if (seen > sums_.amax) sums_.amax = seen;
        if (!std::isfinite(x)) {
          ++sums_.non_finite;
          continue;
        }
        const float stored = q[turned ? c * panel.rows + r : r * panel.columns + c];
        const double error = std::fabs(static_cast<double>(x) - stored);
        sums_.underflow += x != 0 && stored == 0;
        sums_.signal += static_cast<double>(x) * x;
        sums_.noise += error * error;
        if (x != 0) sums_.worst = std::max(sums_.worst, error / std::fabs(x));
      }
    count_codes(rows * panel.columns);
    if (traits_.scaled) count_scales(panel);
  }

  void count_codes(std::int64_t n) {
    const auto element = formats::element_of(format_);
    const std::uint32_t sign = element.sign, top = element.encode(element.max);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes_.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t code = traits_.bits == 4 ? bytes[i / 2] >> (i % 2 * 4) & 15u : bytes[i];
      sums_.zeros += (code & (sign - 1)) == 0;
      sums_.saturated += (code & (sign - 1)) == top;
    }
    sums_.elements += n;
  }

  void count_scales(Matrix panel) {
    const Side side = judged();
    const Matrix grid = traits_.blocks(side, panel), padded = traits_.padded_extent(side, panel);
    const formats::Block repeat = traits_.scale_layout(side).repeat;
    const bool lies_transposed = traits_.scale_layout(side).order == Order::transposed;
    for (std::int64_t i = 0; i < grid.rows; ++i)
      for (std::int64_t j = 0; j < grid.columns; ++j) {
        const std::int64_t row = i * repeat.rows, column = j * repeat.columns;
        const std::int64_t place = lies_transposed ? column * padded.columns + row : row * padded.columns + column;
        typename F::Scale scale{};
        const auto bytes = static_cast<std::size_t>(traits_.scale_bytes);
        std::memcpy(&scale, scales_.data() + place * traits_.scale_bytes, bytes);
        const float value = format_.factor_step(scale, 0.0f);
        ++exponents_[value == 0 ? zero_scale : std::ilogb(value)];
      }
  }

  TensorReport report() const {
    TensorReport r;
    r.name = step_.tensor.source.name;
    r.format = traits_.name;
    r.shape = step_.tensor.source.shape;
    for (Side side : {Side::rowwise, Side::columnwise})
      if (made(side)) r.directions.emplace_back(name_of(side));
    const bool measurable = sums_.signal > 0 && sums_.noise > 0 && std::isfinite(sums_.noise);
    r.snr_db = measurable ? 10 * std::log10(sums_.signal / sums_.noise) : std::numeric_limits<double>::quiet_NaN();
    r.max_rel_error = sums_.worst;
    r.zeros = static_cast<double>(sums_.zeros) / static_cast<double>(sums_.elements);
    r.saturated = static_cast<double>(sums_.saturated) / static_cast<double>(sums_.elements);
    r.underflow = static_cast<double>(sums_.underflow) / static_cast<double>(sums_.elements);
    r.non_finite = sums_.non_finite;
    r.scale_exponents = exponents_;
    return r;
  }

  const QuantizeStep& step_;
  F format_;
  FormatTraits traits_;
  Matrix matrix_, largest_;  ///< sizes of a member and of the largest panel
  Device device_;
  Tensor values_, decoded_, table_memory_;
  std::array<Copy, 2> copies_;
  std::vector<std::byte> host_, codes_, scales_;
  Sums sums_;
  std::map<int, std::int64_t> exponents_;
};

}  // namespace

TensorReport quantize_tensor(const QuantizeStep& step) {
  const FormatId format = step.tensor.format;
  if (formats::is_described(format)) return TensorQuantizer(step, formats::Described(format)).run();
  return visit_format(format, [&]<class F>() -> TensorReport {
    if constexpr (!formats::is_plain<F>)
      return TensorQuantizer(step, F()).run();
    else
      refuse("quantize_tensor", "the format has no scales");
  });
}

}  // namespace tessera
