#include "kernels/quantize/table.hpp"

#include <gtest/gtest.h>

#include "kernels/base/runtime.hpp"
#include "kernels/quantize/host_columnwise.hpp"
#include "kernels/quantize/host_dequantize.hpp"
#include "tests/support/quantized_case.hpp"
#include "tests/support/shown.hpp"

/// Quantization tables: any shapes in one launch; refusals; arrays beyond 2^31 elements.
namespace tessera {
namespace {

using formats::Matrix;
using test::Case;
using test::GuardedCopy;

template <class F>
struct TableOf : ::testing::Test {
  Device device;
};
TYPED_TEST_SUITE(TableOf, test::EveryFormat);

TEST(Table, OneLaunchWhateverTheNumberOfTensors) {
  Device device(Device::Kind::measuring);
  for (int count : {1, 1000}) {
    SCOPED_TRACE(test::shown(count));
    std::vector<QuantizedMatrix> matrices;
    for (int i = 0; i < count; ++i) {
      QuantizedMatrix m;
      m.matrix = {i % 3 == 0 ? 0 : 32, 64};
      m.values = device.allocate(Category::weights, DType::bf16, {m.matrix.rows, 64});
      m.rowwise = {device.allocate(Category::weights, DType::u8, {m.matrix.elements()}),
                   device.allocate(Category::weights, DType::u8, {m.matrix.rows == 0 ? 0 : 128 * 4}),
                   {},
                   {}};
      matrices.push_back(m);
    }
    const std::int64_t before = device.compute().launches();
    quantize(device.compute(), test::placed(device, formats::id_of<formats::Mxfp8>, matrices));
    EXPECT_EQ(device.compute().launches() - before, 1);
  }
}

TEST(Table, EmptyMembersAndMatricesAnywhere) {
  Device device;
  using F = formats::Nvfp4;
  std::vector<QuantizedMatrix> matrices;
  std::vector<Case<F>> filled;
  const auto empty = [&](std::int64_t members, std::int64_t rows) {
    Case<F> c(device, {rows, 64}, members, DType::f32, 1, false);
    matrices.push_back(c.item);
  };
  for (std::uint64_t i = 0; i < 3; ++i) {
    empty(0, 32);
    empty(2, 0);
    filled.emplace_back(device, Matrix{32, 64}, 2, DType::f32, i, false);
    matrices.push_back(filled.back().item);
    empty(3, 0);
  }
  quantize(device.compute(), test::placed(device, formats::id_of<F>, matrices));
  for (const auto& c : filled)
    for (Side side : {Side::rowwise, Side::columnwise}) c.compare(device, side, reference::rounded_to_bf16);
  const QuantizeTable none(formats::id_of<F>, std::vector<QuantizedMatrix>{});
  EXPECT_EQ(none.amax_entries(), 0);
}

void expect_refusal(FormatId format, const std::vector<QuantizedMatrix>& matrices,
                    const std::vector<std::string>& words) {
  try {
    QuantizeTable table(format, matrices);
    ADD_FAILURE() << "accepted" << (words.empty() ? "" : ": " + words.front());
  } catch (const Error& error) {
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(Table, RefusesWithTensorShapeAndRule) {
  Device device;
  using F = formats::Mxfp8;
  const FormatId id = formats::id_of<F>;
  Case<F> good(device, {64, 96}, 2, DType::f32, 1, false);
  const auto with = [&](const auto& change) {
    QuantizedMatrix m = good.item;
    m.name = "layers.3.mlp.up.weight";
    change(m);
    return std::vector<QuantizedMatrix>{m};
  };
  expect_refusal(id, with([](auto& m) {
                   m.matrix = {64, 90};
                   m.values.shape = Shape{2 * 64 * 90};
                 }),
                 {"layers.3.mlp.up.weight", "[2,64,90]", "mxfp8", "divisible"});
  expect_refusal(id, with([](auto& m) { m.rowwise.data.data = nullptr; }), {"data", "no buffer"});
  expect_refusal(id, with([](auto& m) { m.rowwise.scales.shape = Shape{5}; }), {"scales", "5 bytes instead of"});
  expect_refusal(id, with([](auto& m) { m.columnwise.data = m.rowwise.data; }), {"overlap"});
  expect_refusal(id, with([](auto& m) { m.member_stride = 10; }), {"members overlap"});
  expect_refusal(id, with([](auto& m) { m.begin = ElementIndex(1); }), {"outside"});
  expect_refusal(id, with([](auto& m) { m.matrix = {std::int64_t{1} << 40, std::int64_t{1} << 40}; }), {"index"});
  expect_refusal(id, with([](auto& m) { m.matrix.rows = -1; }), {"negative"});
  expect_refusal(id, with([&](auto& m) { m.block_scales = device.allocate(Category::weights, DType::u8, {8}); }),
                 {"square"});
  expect_refusal(id, with([](auto& m) { m.values.type = DType::f64; }), {"bf16 or f32"});
  QuantizedMatrix other = good.item;
  other.values.type = DType::bf16;
  expect_refusal(id, {good.item, other}, {"one type"});
  QuantizedMatrix rows = good.item;
  rows.begin = ElementIndex(96);
  rows.values = good.item.values.flat(96, 64);
  EXPECT_THROW(quantize(device.compute(), test::placed(device, id, {rows})), Error);
  EXPECT_THROW(quantize(device.compute(), QuantizeTable(id, with([](auto&) {}))), Error);  // not placed
}

TEST(Table, RefusesLinesThatEndWithinAByte) {
  Device device;
  Case<formats::Mxfp4> good(device, {32, 34}, 1, DType::f32, 1, false);
  QuantizedMatrix odd = good.item;
  odd.name = "mlp.up";
  odd.matrix = {32, 33};
  odd.values = good.item.values.flat(0, 32 * 33);
  odd.rowwise = {};
  expect_refusal(formats::id_of<formats::Mxfp4>, {odd}, {"mlp.up", "columnwise needs lines of whole bytes"});
}

TEST(Table, RefusesMatricesThatOverlap) {
  Device device;
  using F = formats::Fp8Block;
  const Case<F> a(device, {128, 128}, 2, DType::f32, 1, false), b(device, {128, 128}, 2, DType::f32, 2, false);
  const auto with = [&](const auto& change) {
    std::vector<QuantizedMatrix> pair{a.item, b.item};
    pair[0].name = "first";
    pair[1].name = "second";
    change(pair[0], pair[1]);
    return pair;
  };
  const FormatId id = formats::id_of<F>;
  EXPECT_NO_THROW(QuantizeTable(id, with([](auto&, auto&) {})));
  EXPECT_NO_THROW(QuantizeTable(id, with([](auto& x, auto& y) { y.values = x.values; })));
  const std::vector<std::string> named{"fp8_block: second [2,128,128]: buffers overlap those of first [2,128,128]"};
  expect_refusal(id, with([](auto& x, auto& y) { y.rowwise.data = x.rowwise.data; }), named);
  expect_refusal(id, with([](auto& x, auto& y) { y.rowwise.data = x.columnwise.data; }), named);
  expect_refusal(id, with([](auto& x, auto& y) { y.columnwise.scales = x.columnwise.scales; }), named);
  expect_refusal(id, with([](auto& x, auto& y) { y.rowwise.data.data = x.values.data; }), named);
  expect_refusal(id, with([](auto& x, auto& y) { x.rowwise.data.data = y.values.data; }), named);
  // Parts of one matrix write to the same copies, but must not own the same elements.
  const auto part = [&](std::int64_t begin, std::int64_t count) {
    QuantizedMatrix m = a.item;
    m.begin = ElementIndex(begin);
    m.values = a.item.values.flat(begin, count);
    return m;
  };
  EXPECT_NO_THROW(QuantizeTable(id, std::vector{part(16384, 16384), part(0, 16384)}));
  expect_refusal(id, {part(0, 16385), part(16384, 16384)}, {"overlap"});
}

// Members of one matrix may lie in the gaps between those of another, as gate and up in one fused weight.
TEST(Table, TakesMembersBetweenThoseOfAnother) {
  Device device;
  using F = formats::Bf16;
  const std::int64_t n = 8 * 32;
  const auto x = test::wild(4 * n, 5, false);
  const Tensor values = test::on_device(device, x), out = test::poisoned(device, DType::bf16, {4 * n});
  std::vector<QuantizedMatrix> pair(2);
  for (std::int64_t i = 0; i < 2; ++i) {
    QuantizedMatrix& m = pair[static_cast<std::size_t>(i)];
    m.matrix = {8, 32};
    m.members = 2;
    m.member_stride = 2 * n;
    m.values = values.flat(i * n, 3 * n);
    m.rowwise.data = out.flat(i * n, 3 * n);
  }
  quantize(device.compute(), test::placed(device, formats::id_of<F>, pair));
  const auto made = test::on_host<bf16>(device, out);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(made[i].bits, bf16(x[i]).bits) << i;
  pair[1].rowwise.data = out.flat(n - 32, 3 * n);
  expect_refusal(formats::id_of<F>, pair, {"overlap"});
}

TYPED_TEST(TableOf, RefusesTheShapesThatADirectionDoesNotTake) {
  using F = TypeParam;
  int refused = 0;
  for (const Matrix& m : test::shapes())
    for (Side side : {Side::rowwise, Side::columnwise}) {
      if (formats::takes<F>(side, m)) continue;
      const GuardedCopy<F> buffers(this->device, side, m, 1);
      QuantizedMatrix item;
      item.name = "mlp.up";
      item.matrix = m;
      item.values = test::poisoned<float>(this->device, {m.elements()});
      (side == Side::rowwise ? item.rowwise : item.columnwise) = buffers.copy();
      expect_refusal(formats::id_of<F>, {item},
                     {"mlp.up", Shape{1, m.rows, m.columns}.text(), name_of(side), "divisible by"});
      ++refused;
    }
  EXPECT_EQ(refused == 0, F::ragged);
}

TYPED_TEST(TableOf, RefusesBadBuffersInEveryFormat) {
  using F = TypeParam;
  Case<F> good(this->device, {128, 128}, 2, DType::f32, 1, false);
  const FormatId id = formats::id_of<F>;
  const auto with = [&](const auto& change) {
    QuantizedMatrix m = good.item;
    change(m);
    return std::vector<QuantizedMatrix>{m};
  };
  const auto with_data = [&](void* data) {
    return with([&](auto& m) {
      m.rowwise.data.data = data;
      if (F::columnwise == formats::Columnwise::shared) m.columnwise.data.data = data;
    });
  };
  expect_refusal(id, with_data(nullptr), {"data", "no buffer"});
  expect_refusal(id, with([](auto& m) { m.values.data = nullptr; }), {"values", "no buffer"});
  expect_refusal(id, with_data(good.item.values.data), {"overlap"});
  expect_refusal(id, with([](auto& m) { m.matrix = {std::int64_t{1} << 40, std::int64_t{1} << 40}; }), {"index"});
  expect_refusal(id, with([](auto& m) { m.members = std::int64_t{1} << 62; }), {"index"});
  expect_refusal(id, with([](auto& m) { m.begin = ElementIndex(1); }), {"outside"});
  expect_refusal(id, with([](auto& m) { m.rowwise.data.shape = Shape{3}; }), {"data", "bytes instead of"});
  if (F::scaled) {
    expect_refusal(id, with([](auto& m) { m.rowwise.scales.data = nullptr; }), {"scales", "no buffer"});
    expect_refusal(id, with([](auto& m) { m.columnwise.scales = m.rowwise.scales; }), {});
  }
  if (!F::ragged)
    expect_refusal(id, with([](auto& m) {
                     m.matrix = {7, 40};
                     m.values.shape = Shape{2 * 7 * 40};
                   }),
                   {"divisible"});
}

// ---- arrays beyond 2^31 elements, in reserved address space of which only touched pages have memory

constexpr Matrix huge{std::int64_t{1} << 21, 2048}, last{128, 2048};  // the huge matrix's last rows
static_assert(huge.elements() > std::int64_t{1} << 31);

/// The huge matrix, with only its last rows owned.
template <class F>
struct Huge {
  struct Side {
    test::Reserved data, scales, swizzled, amax;
    explicit Side(tessera::Side side)
        : data(formats::data_bytes<F>(huge.elements())),
          scales(std::max<std::int64_t>(scale_bytes(side), 1)),
          swizzled(std::max<std::int64_t>(scale_bytes(side), 1)),
          amax(4 * std::max<std::int64_t>(traits_of<F>().amaxes(side, huge), 1)) {}
    static std::int64_t scale_bytes(tessera::Side side) {
      return formats::padded_extent<F>(side, huge).elements() * static_cast<std::int64_t>(sizeof(typename F::Scale));
    }
    Copy copy() const {
      Copy c;
      c.data = data.tensor(dtype_of<typename F::Element::Storage>);
      if (F::scaled) c.scales = scales.tensor(dtype_of<typename F::Scale>);
      if (F::tensor_amax) c.amax = amax.tensor(DType::f32);
      if (formats::swizzles<F>()) c.swizzled = swizzled.tensor(DType::u8);
      return c;
    }
  };

  std::vector<float> values = test::wild(last.elements(), 6, false);
  Side rowwise{tessera::Side::rowwise}, columnwise{tessera::Side::columnwise};
  QuantizedMatrix item;

  explicit Huge(Device& device) {
    item.matrix = huge;
    item.begin = ElementIndex(huge.elements() - last.elements());
    item.values = test::on_device(device, values);
    item.rowwise = rowwise.copy();
    item.columnwise = columnwise.copy();
    if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
  }
};

/// Index in the huge matrix of an element, or of a block, of the last rows.
template <class F>
std::int64_t element_in_huge(Side side, std::int64_t r, std::int64_t c) {
  return reference::element_place<F>(side, huge, huge.rows - last.rows + r, c);
}
template <class F>
std::int64_t scale_in_huge(Side side, std::int64_t i, std::int64_t j) {
  return reference::scale_places<F>(side, huge, (huge.rows - last.rows) / formats::block_of<F>(side).rows + i, j)
      .front();
}

template <class F>
void expect_last_rows(Side side, const Copy& copy, const reference::QuantizedCopy<typename F::Scale>& expected) {
  const std::span data(static_cast<const std::uint8_t*>(copy.data.data), static_cast<std::size_t>(copy.data.bytes()));
  const auto* scales = static_cast<const typename F::Scale*>(copy.scales.data);
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < last.rows; ++r)
    for (std::int64_t c = 0; c < last.columns; ++c)
      wrong += reference::get_code<F>(data, element_in_huge<F>(side, r, c)) !=
               reference::get_code<F>(expected.data, reference::element_place<F>(side, last, r, c));
  const Matrix grid = formats::blocks<F>(side, last);
  for (std::int64_t i = 0; F::scaled && i < grid.rows; ++i)
    for (std::int64_t j = 0; j < grid.columns; ++j) {
      const auto place = static_cast<std::size_t>(reference::scale_places<F>(side, last, i, j).front());
      wrong += scales[scale_in_huge<F>(side, i, j)] != expected.scales[place];
    }
  EXPECT_EQ(wrong, 0) << F::name << " " << name_of(side);
}

template <class F, Side side>
void expect_decoded(const quantizer::Descriptor& given,
                    const reference::QuantizedCopy<typename F::Scale>& copy) {
  const test::Reserved decoded(huge.elements() * 4);
  const auto* out = decoded.tensor(DType::f32).as<float>();
  quantizer::Descriptor d = given;
  d.values = static_cast<std::byte*>(decoded.tensor(DType::f32).data);
  const auto column = static_cast<std::int32_t>(d.patches.columns - 1);
  const auto p = quantizer::patch_of(d, {0, 0, static_cast<std::int32_t>(d.patches.rows - 1), column});
  quantizer::host::decode_patch<F, side, quantizer::Decoding::tensor, float>(d, p);
  const auto expected =
      reference::dequantize<F>(side, last, copy, F::step);
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t c = p.column; c < last.columns; ++c)
      wrong += out[element_in_huge<F>(side, r, c)] != expected[static_cast<std::size_t>(r * last.columns + c)];
  EXPECT_EQ(wrong, 0) << F::name << " " << name_of(side);
}

// The rows before are zero, so the amax of the last rows is that of the matrix.
TYPED_TEST(TableOf, FindsItsPlacesBeyond32Bits) {
  using F = TypeParam;
  if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "needs an address range that is not backed";
  const Huge<F> big(this->device);
  const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {big.item});
  quantize(this->device.compute(), table);
  const auto seen = reference::rounded_to_bf16(big.values);
  const reference::QuantizedCopy<typename F::Scale> expected[] = {
      reference::quantize<F>(Side::rowwise, last, seen), reference::quantize<F>(Side::columnwise, last, seen)};
  const quantizer::Descriptor& d = table.descriptors().front();
  expect_last_rows<F>(Side::rowwise, big.item.rowwise, expected[0]);
  expect_last_rows<F>(Side::columnwise, big.item.columnwise, expected[1]);
  expect_decoded<F, Side::rowwise>(d, expected[0]);
  expect_decoded<F, Side::columnwise>(d, expected[1]);
  const auto last_patches = [&](const quantizer::Descriptor& of, const auto& work) {
    for (std::int32_t column = 0; column < of.patches.columns; ++column)
      work(of, quantizer::patch_of(of, {0, 0, static_cast<std::int32_t>(of.patches.rows - 1), column}));
  };
  if constexpr (F::agreement != formats::Agreement::nothing) {
    const auto amaxes = test::poisoned(this->device, DType::bf16, {table.amax_entries()});
    block_amax(this->device.compute(), table, amaxes);
    const auto found = test::on_host<bf16>(this->device, amaxes);
    const auto tiles = reference::block_amaxes<F>(last, seen);
    if (formats::agrees_on_blocks(F::agreement)) {
      const auto first = static_cast<std::size_t>(table.block_entries()) - tiles.size();
      for (std::size_t i = 0; i < tiles.size(); ++i) ASSERT_EQ(static_cast<float>(found[first + i]), tiles[i]);
    }
    if (F::tensor_amax) {
      ASSERT_EQ(static_cast<float>(found.back()), *std::ranges::max_element(tiles));
    }

    const typename Huge<F>::Side other(Side::columnwise);
    quantizer::Descriptor derived = d;
    derived.side[1] = {static_cast<std::byte*>(other.copy().data.data), other.copy().scales.data, d.side[1].amax,
                       nullptr};
    last_patches(derived, [](const auto& of, const auto& p) { quantizer::host::build_columnwise<F>(of, p); });
    Copy made = other.copy();
    if (F::columnwise == formats::Columnwise::shared) made.data = big.item.rowwise.data;
    expect_last_rows<F>(Side::columnwise, made, expected[1]);
  }
  if constexpr (formats::swizzles<F>()) {
    last_patches(d, [](const auto& of, const auto& p) {
      quantizer::host::swizzle_patch<F>(Side::rowwise, of, p);
      quantizer::host::swizzle_patch<F>(Side::columnwise, of, p);
    });
    for (Side side : {Side::rowwise, Side::columnwise}) {
      SCOPED_TRACE(test::shown(side));
      const Matrix padded = formats::padded_extent<F>(side, huge), grid = formats::blocks<F>(side, last);
      const Copy& copy = side == Side::rowwise ? big.item.rowwise : big.item.columnwise;
      const bool turned = side == Side::columnwise && F::columnwise_order == formats::Order::as_source;
      for (std::int64_t i = 0; i < grid.rows; ++i)
        for (std::int64_t j = 0; j < grid.columns; ++j) {
          const std::int64_t at = scale_in_huge<F>(side, i, j), a = at / padded.columns, b = at % padded.columns;
          const std::int64_t to =
              turned ? formats::swizzled(b, a, padded.rows) : formats::swizzled(a, b, padded.columns);
          ASSERT_EQ(copy.swizzled.template as<std::uint8_t>()[to], copy.scales.template as<std::uint8_t>()[at]);
        }
    }
  }
}

}  // namespace
}  // namespace tessera
