// Products of codes as a library with block scaling gets them: its buffers hold the decoded factors, bit for bit.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/base/runtime.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/native.hpp"
#include "kernels/gemm/route.hpp"
#include "tests/support/coded_factor.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/software_units.hpp"

namespace tessera {
namespace {

using test::Factor;
using test::Formats;
using test::SoftwareUnits;

using Recipes = ::testing::Types<test::FormatsOfBlocks, test::FormatsOfTensors, Formats<formats::Mxfp8, formats::Mxfp8>,
                                 Formats<formats::Mxfp8Tiles, formats::Mxfp8>,
                                 Formats<formats::Nvfp4, formats::Nvfp4OneD>>;

struct Sides {
  std::int64_t rows, in, out;
};
/// Sides that native products take: below, at and beyond whole tiles of 128 rows and 4 scales.
std::vector<Sides> drawn_sides() {
  std::mt19937 random(11);
  std::vector<Sides> all{{32, 32, 32}, {128, 128, 128}, {160, 416, 288}};
  const auto side = [&] { return static_cast<std::int64_t>(1 + random() % 12) * 32; };
  for (int i = 0; i < 5; ++i) all.push_back({side(), side(), side()});
  return all;
}

template <class P>
struct NativeProduct : ::testing::Test {
  void SetUp() override {
    if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "the units of this test read the host's memory";
  }

  /// Bits of what the products of a layer give.
  struct Results {
    std::vector<bf16> y, biased, dx, unfused;
    std::vector<float> dw, accumulated;
    void expect(const Results& other) const {
      EXPECT_TRUE(test::same_bits(y, other.y));
      EXPECT_TRUE(test::same_bits(biased, other.biased));
      EXPECT_TRUE(test::same_bits(dx, other.dx));
      EXPECT_TRUE(test::same_bits(unfused, other.unfused));
      EXPECT_TRUE(test::same_bits(dw, other.dw));
    }
  };
  struct Layer {
    explicit Layer(const Sides& s)
        : sides(s),
          x(device, {s.rows, s.in}, 1, 1),
          dy(device, {s.rows, s.out}, 1, 2),
          w(device, {s.out, s.in}, 1, 3) {}
    Results results() {
      const auto [rows, in, out] = sides;
      Stream& stream = device.compute();
      const Tensor y = test::poisoned<bf16>(device, {rows, out}), biased = test::poisoned<bf16>(device, {rows, out}),
                   dx = test::poisoned<bf16>(device, {rows, in}), unfused = test::poisoned<bf16>(device, {out, in}),
                   dw = test::poisoned<float>(device, {out, in});
      const Tensor bias = test::on_device(device, {out}, test::uniform<bf16>(out, 5));
      linear_forward(stream, y, x.operand(Side::rowwise), w.operand(Side::rowwise));
      linear_forward(stream, biased, x.operand(Side::rowwise), w.operand(Side::rowwise), bias);
      linear_input_gradient(stream, dx, dy.operand(Side::rowwise), w.operand(Side::columnwise));
      linear_weight_gradient(stream, {unfused}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
      linear_weight_gradient(stream, {dw}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
      std::vector<float> once = test::on_host<float>(device, dw);
      linear_weight_gradient(stream, {dw, 1}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
      return {test::on_host<bf16>(device, y), test::on_host<bf16>(device, biased), test::on_host<bf16>(device, dx),
              test::on_host<bf16>(device, unfused), std::move(once), test::on_host<float>(device, dw)};
    }
    Sides sides;
    Device device;
    Factor<typename P::Value> x;
    Factor<typename P::Slope> dy;
    Factor<typename P::Weight> w;
  };
};
TYPED_TEST_SUITE(NativeProduct, Recipes);

/// The matrix as its transpose.
std::vector<bf16> turned(const std::vector<bf16>& values, std::int64_t rows, std::int64_t columns) {
  std::vector<bf16> t(values.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      t[static_cast<std::size_t>(c * rows + r)] = values[static_cast<std::size_t>(r * columns + c)];
  return t;
}

TYPED_TEST(NativeProduct, GetsTheDecodedFactorsToTheBit) {
  for (const Sides& sides : drawn_sides()) {
    SCOPED_TRACE(test::shown(sides.rows, sides.in, sides.out));
    typename TestFixture::Layer layer(sides);
    SoftwareUnits units;
    // An fp8 tensor's scale is left to alpha, a power of two.
    const auto decoded = [&](auto& factor, Side side) {
      std::vector<bf16> values = test::on_host<bf16>(layer.device, factor.values(layer.device, side).data);
      return side == Side::rowwise ? values : turned(values, factor.matrix.rows, factor.matrix.columns);
    };
    const auto expect = [&](auto& a, Side side_a, auto& b, Side side_b) {
      using W = typename TypeParam::Weight;
      if (W::tensor_amax && !W::leaves_alpha) return;  // their codes are compared by what the products give
      EXPECT_TRUE(test::same_bits(units.sides_of_a(), decoded(a, side_a)));
      EXPECT_TRUE(test::same_bits(units.sides_of_b(), decoded(b, side_b)));
    };
    Stream& stream = layer.device.compute();
    const auto [rows, in, out] = sides;
    linear_forward(stream, test::poisoned<bf16>(layer.device, {rows, out}), layer.x.operand(Side::rowwise),
                   layer.w.operand(Side::rowwise));
    expect(layer.x, Side::rowwise, layer.w, Side::rowwise);
    linear_input_gradient(stream, test::poisoned<bf16>(layer.device, {rows, in}), layer.dy.operand(Side::rowwise),
                          layer.w.operand(Side::columnwise));
    expect(layer.dy, Side::rowwise, layer.w, Side::columnwise);
    linear_weight_gradient(stream, {test::poisoned<float>(layer.device, {out, in})}, layer.dy.operand(Side::columnwise),
                           layer.x.operand(Side::columnwise));
    expect(layer.dy, Side::columnwise, layer.x, Side::columnwise);
    EXPECT_EQ(units.products, 3);
  }
}

TYPED_TEST(NativeProduct, EqualsTheDecodedRoute) {
  using W = typename TypeParam::Weight;
  // FP8 blocks become products of another memory order, whose sums a host adds in another order.
  const bool reordered = std::is_same_v<W, formats::Fp8Block>;
  // Where units get an FP8 tensor's scale as alpha, c is added after the sum; without one a library may begin with c.
  const bool adds_c_last = W::tensor_amax && !W::leaves_alpha;
  for (const Sides& sides : drawn_sides()) {
    SCOPED_TRACE(test::shown(sides.rows, sides.in, sides.out));
    typename TestFixture::Layer layer(sides);
    const auto decoded = layer.results();
    SoftwareUnits units;
    const auto native = layer.results();
    EXPECT_EQ(units.products, 6);
    if (!reordered) native.expect(decoded);
    if (!reordered && !adds_c_last) {
      EXPECT_TRUE(test::same_bits(native.accumulated, decoded.accumulated));
    }
    EXPECT_TRUE(test::close(test::in_double(native.dw), test::in_double(decoded.dw), 2e-5));
    EXPECT_TRUE(test::close(test::in_double(native.accumulated), test::in_double(decoded.accumulated), 2e-5));
    EXPECT_TRUE(test::close(test::in_double(native.dx), test::in_double(decoded.dx), 8e-3));
    EXPECT_TRUE(test::close(test::in_double(native.biased), test::in_double(decoded.biased), 8e-3));
  }
}

TYPED_TEST(NativeProduct, SidesThatUnitsDoNotTakeAreDecoded) {
  SoftwareUnits units;
  const bool blocks = TypeParam::Weight::scaled;
  for (const gemm::Form form : {gemm::Form::forward, gemm::Form::input_gradient, gemm::Form::weight_gradient})
    for (std::int64_t m = 8; m <= 40; m += 4)
      for (std::int64_t n = 8; n <= 40; n += 4)
        for (std::int64_t k = 16; k <= 96; k += 8) {
          gemm::Product p{.type = DType::bf16, .form = form, .m = m, .n = n, .k = k};
          p.a = form == gemm::Form::forward ? formats::id_of<typename TypeParam::Value>
                                            : formats::id_of<typename TypeParam::Slope>;
          p.b = form == gemm::Form::weight_gradient ? formats::id_of<typename TypeParam::Value>
                                                    : formats::id_of<typename TypeParam::Weight>;
          const int side = blocks ? 16 : 8;
          const bool fits = m % side == 0 && n % side == 0 && k % (2 * side) == 0;
          EXPECT_EQ(gemm::route_of(p), fits ? gemm::Route::native : gemm::Route::decoded) << m << " " << n << " " << k;
          p.experts = 2;
          EXPECT_EQ(gemm::route_of(p), gemm::Route::decoded);
        }
}

TEST(NativeProducts, OfFormatsThatNoUnitPairsAreDecoded) {
  SoftwareUnits units;
  EXPECT_FALSE(gemm::native_pair(gemm::Form::forward, formats::id_of<formats::Mxfp8>, formats::id_of<formats::Nvfp4>));
  EXPECT_FALSE(gemm::native_pair(gemm::Form::forward, formats::id_of<formats::Fp8BlockOneD>,
                                 formats::id_of<formats::Mxfp8>));
  EXPECT_TRUE(gemm::native_pair(gemm::Form::forward, formats::id_of<formats::Fp8BlockOneD>,
                                formats::id_of<formats::Fp8Block>));
}

// The goldens' places of scales, against arrays whose entries tell where they were.
TEST(SwizzledScales, LieWhereAnotherLibraryExpectsThem) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../oracle/goldens/block_scales.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  Device device;
  int compared = 0;
  const auto compare = [&]<class F>(Side side, std::int64_t sides, std::int64_t sum, std::int64_t row,
                                    std::int64_t block, std::int64_t offset) {
    const formats::Matrix m = side == Side::rowwise ? formats::Matrix{sides, sum} : formats::Matrix{sum, sides};
    const Shape shape = formats::scale_shape<F>(side, m);
    const bool turned = side == Side::columnwise && F::columnwise_order == formats::Order::as_source;
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(shape.elements()));
    scales[static_cast<std::size_t>(turned ? block * shape[1] + row : row * shape[1] + block)] = 1;
    QuantizedMatrix matrix;
    matrix.matrix = m;
    matrix.values = {nullptr, DType::bf16, {0}};
    Copy& copy = side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
    copy.data = test::poisoned<std::uint8_t>(device, formats::data_shape<F>(side, m));
    copy.scales = test::on_device(device, shape, scales);
    copy.swizzled = test::poisoned<std::uint8_t>(device, shape);
    if (F::tensor_amax) copy.amax = test::poisoned<float>(device, {1});
    swizzle_one(device.compute(), formats::id_of<F>, matrix);
    const auto made = test::on_host<std::uint8_t>(device, copy.swizzled);
    EXPECT_EQ(std::find(made.begin(), made.end(), 1) - made.begin(), offset) << F::name << " " << row << " " << block;
    EXPECT_EQ(std::count(made.begin(), made.end(), 0), std::ssize(made) - 1);
    ++compared;
  };
  int skipped = 0;
  for (const auto& c : golden.at("cases")) {
    if (skipped++ % 6 != 0) continue;
    const Side side = c[1] == -1 ? Side::rowwise : Side::columnwise;
    if (c[0] == "mxfp8") compare.operator()<formats::Mxfp8>(side, c[2], c[3], c[4], c[5], c[6]);
    else compare.operator()<formats::Nvfp4OneD>(side, c[2], c[3], c[4], c[5], c[6]);
  }
  EXPECT_GE(compared, 90);
}

}  // namespace
}  // namespace tessera
