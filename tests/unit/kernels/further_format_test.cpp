#include <gtest/gtest.h>

#include <set>

#include "kernels/base/runtime.hpp"
#include "kernels/quantize/host_dequantize.hpp"
#include "kernels/quantize/host_quantize.hpp"
#include "tests/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/quantized.hpp"

namespace tessera {
namespace {

using formats::Matrix;
using test::GuardedCopy;

// Adding a format: it takes only a header and an entry in the registry.

/// OCP's MXINT8: a signed byte of which 64 is 1, an E8M0 scale per 32.
struct MxInt8 : formats::Mxfp8 {
  struct Element {
    using Storage = std::uint8_t;
    static constexpr int bits = 8;
    TESSERA_FN static constexpr std::uint32_t encode(float x) {
      const float units = x * 64.0f;
      const float bounded = units > 127.0f ? 127.0f : units < -127.0f ? -127.0f : units;
      return static_cast<std::uint8_t>(static_cast<std::int32_t>(bounded + (bounded < 0 ? -0.5f : 0.5f)));
    }
    TESSERA_FN static constexpr float decode(std::uint32_t code) {
      return static_cast<float>(static_cast<std::int8_t>(code)) / 64.0f;
    }
  };
  static constexpr std::string_view name = "mxint8";
  TESSERA_FN static constexpr formats::Encoding<Scale> encoding(float amax, formats::TensorScale) {
    const std::uint32_t code = formats::E8M0::encode(amax * 0.5f);
    return {static_cast<Scale>(code), formats::E8M0::multiplier(code)};
  }
};
static_assert(formats::Format<MxInt8>);

// The registry with it. Its kernels are compiled with the library, so that here the host's are called.
template <class... F, class... All>
formats::FormatList<All..., F...> with(formats::FormatList<All...>);
using Extended = decltype(with<MxInt8>(formats::Registry{}));

/// One matrix of format F with both copies, and the host's kernels on it.
template <class F>
struct Quantized {
  Quantized(Device& device, Matrix m, const std::vector<float>& x)
      : matrix(m),
        values(test::on_device(device, x)),
        copies{{device, Side::rowwise, m, 1}, {device, Side::columnwise, m, 1}} {
    d.matrix = m;
    d.members = 1;
    d.stride = d.end = m.elements();
    d.patches = {formats::tiles_along(m.rows, 128), formats::tiles_along(m.columns, 128)};
    for (int s = 0; s < 2; ++s)
      d.side[s] = {static_cast<std::byte*>(copies[s].data.inner.data), copies[s].scales.inner.data, nullptr, nullptr};
  }
  /// Calls work(descriptor, patch) for every patch of a matrix with the values of `t`.
  template <class Work>
  void each_patch(const Tensor& t, const Work& work) {
    d.values = static_cast<std::byte*>(t.data);
    for (std::int32_t row = 0; row < d.patches.rows; ++row)
      for (std::int32_t column = 0; column < d.patches.columns; ++column)
        work(d, quantizer::patch_of(d, {0, 0, row, column}));
  }
  Matrix matrix;
  Tensor values;
  GuardedCopy<F> copies[2];
  quantizer::Descriptor d{};
};

template <class F, Side side>
void compare(Device& device, Quantized<F>& q, const std::vector<float>& x) {
  const GuardedCopy<F>& made = q.copies[static_cast<int>(side)];
  const auto whole = reference::quantize<F>(side, q.matrix, reference::rounded_to_bf16(x));
  if (side == Side::rowwise || F::columnwise != formats::Columnwise::shared) {
    EXPECT_TRUE(test::same_bits(made.data.bytes(device), whole.data)) << F::name;
  }
  if (F::scaled) {
    EXPECT_TRUE(test::same_bits(test::on_host<typename F::Scale>(device, made.scales.inner), whole.scales)) << F::name;
  }
  EXPECT_TRUE(made.untouched(device)) << F::name;
  if (formats::order_of<F>(side) == formats::Order::transposed) return;
  const Tensor decoded = test::poisoned<float>(device, {q.matrix.elements()});
  if (F::columnwise == formats::Columnwise::shared) q.d.side[1].data = q.d.side[0].data;
  q.each_patch(decoded, [](const auto& d, const auto& p) {
    quantizer::host::decode_patch<F, side, quantizer::Decoding::tensor, float>(d, p);
  });
  EXPECT_TRUE(test::same_bits(
      test::on_host<float>(device, decoded),
      reference::dequantize<F>(side, q.matrix, whole, F::step)));
}

TEST(FurtherFormat, IsDispatchedQuantizedAndDecodedByTheSameCode) {
  Device device;
  if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "walks device memory on the host";
  const Matrix m{160, 96};
  const auto x = test::uniform<float>(m.elements(), 4);
  std::set<std::string_view> names;
  for (int place = 0; place < Extended::size; ++place)
    formats::visit(Extended{}, place, [&]<class F>() {
      EXPECT_EQ(static_cast<int>(formats::position<F>(Extended{})), place);
      EXPECT_TRUE(names.insert(F::name).second);
      if (F::tensor_amax) return;  // a launch of its own comes first
      Quantized<F> q(device, m, x);
      q.each_patch(q.values, [](const auto& d, const auto& p) {
        quantizer::host::quantize_patch<F, quantizer::Mode<quantizer::FromMaster>>(d, p);
      });
      compare<F, Side::rowwise>(device, q, x);
      compare<F, Side::columnwise>(device, q, x);
    });
  EXPECT_TRUE(names.contains("mxint8"));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(formats::Registry::size + 1));
}

}  // namespace
}  // namespace tessera
