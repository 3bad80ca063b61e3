#pragma once
#include <gtest/gtest.h>

#include "core/device/device.hpp"
#include "core/layout/param.hpp"
#include "kernels/gemm/operand.hpp"
#include "kernels/random/random.hpp"
#include "tests/reference/quantize.hpp"
#include "tests/support/on_device.hpp"

namespace tessera::test {

/// All elements of a parameter's master, drawn with `seed`.
inline std::vector<float> drawn(Device& device, const ParamSpec& spec, std::uint64_t seed) {
  const Tensor values = device.allocate(Category::staging, DType::f32, {spec.member_elements() * spec.members});
  fill_normal(device.compute(), values, random_key(seed, "init", spec.canonical.name, 0),
              static_cast<std::uint64_t>(spec.canonical.first), spec.start.deviation);
  return on_host<float>(device, values);
}

inline std::vector<std::uint8_t> bytes_of(Device& device, const Tensor& t) {
  return on_host<std::uint8_t>(device, {t.data, DType::u8, Shape{t.bytes()}});
}

/// Expects that the operand of a weight is Q(bf16(master)). That is its values, or data, scales with padding and amax
/// of one side, as the serial reference quantizes each whole member.
inline void expect_quantized(Device& device, const Operand& held, const ParamSpec& spec,
                             const std::vector<float>& drawn, Side side, const std::string& where) {
  const auto elements = static_cast<std::size_t>(spec.member_elements());
  ASSERT_EQ(drawn.size(), elements * static_cast<std::size_t>(spec.members));
  for (int e = 0; e < spec.members; ++e) {
    const auto first = drawn.begin() + static_cast<std::ptrdiff_t>(e * spec.member_elements());
    const std::vector<float> member(first, first + static_cast<std::ptrdiff_t>(elements));
    const Operand one = held.member(e);
    if (!held.codes) {
      std::vector<bf16> rounded(member.begin(), member.end());
      const std::vector<bf16> values = on_host<bf16>(device, one.data);
      for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(values[i].bits, rounded[i].bits) << where << ", " << i;
      continue;
    }
    ASSERT_EQ(held.codes->format, *spec.format.codes) << where;
    ASSERT_EQ(held.codes->side, side) << where;
    visit_format(*spec.format.codes, [&]<class F>() {
      const formats::Matrix matrix{spec.member[0], spec.member[1]};
      const auto wanted = reference::quantize<F>(side, matrix, reference::rounded_to_bf16(member));
      ASSERT_EQ(one.data.shape, formats::data_shape<F>(side, matrix)) << where;
      ASSERT_EQ(bytes_of(device, one.data), wanted.data) << where << ", data of member " << e;
      if constexpr (F::scaled) {
        ASSERT_EQ(on_host<typename F::Scale>(device, one.codes->scales.view({one.codes->scales.elements()})),
                  wanted.scales)
            << where << ", scales of member " << e;
      }
      if constexpr (F::tensor_amax) {
        const Tensor amax{one.codes->amax.data, DType::f32, Shape{1}};
        ASSERT_EQ(on_host<float>(device, amax).front(), wanted.amaxes.front()) << where << ", amax of member " << e;
      }
    });
  }
}

}  // namespace tessera::test
