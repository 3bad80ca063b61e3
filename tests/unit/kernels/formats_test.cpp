#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/every_format.hpp"
#include "tests/support/shown.hpp"

namespace tessera::formats {
namespace {

const nlohmann::json& golden() {
  static const nlohmann::json cases = [] {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../oracle/formats.json");
    return nlohmann::json::parse(file);
  }();
  return cases;
}
std::uint32_t word(const nlohmann::json& hex) {
  return static_cast<std::uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16));
}
float real(const nlohmann::json& hex) { return std::bit_cast<float>(word(hex)); }
std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float from_bits(std::uint32_t u) { return std::bit_cast<float>(u); }

// Blocks of both shapes give the same codes: the name without its shape.
std::string_view element_name(std::string_view format) {
  return format.ends_with("_2d") ? format.substr(0, format.size() - 3) : format;
}

float amax_of(const nlohmann::json& values) {
  float top = 0;
  for (const auto& x : values)
    if (std::fabs(real(x)) > top) top = std::fabs(real(x));
  return top;
}

// The code nearest to x by comparing distances in fp64 (exact here), ties to the even code: another way than the
// codec's.
template <class E>
std::uint32_t nearest_code(float x, std::uint32_t max_code, std::uint32_t nan_code) {
  if (std::isnan(x)) return nan_code;
  const double a = std::fabs(static_cast<double>(x));
  std::uint32_t best = 0;
  for (std::uint32_t c = 1; c <= max_code; ++c) {
    const double d = std::fabs(E::decode(c) - a), least = std::fabs(E::decode(best) - a);
    if (d < least || (d == least && c % 2 == 0)) best = c;
  }
  if (a > E::max) best = max_code;
  return best | (std::signbit(x) ? E::sign : 0u);
}

template <class E>
struct Limits;
template <>
struct Limits<E4M3> {
  static constexpr std::uint32_t top = 0x7E, nan = 0x7F;
};
template <>
struct Limits<E5M2> {
  static constexpr std::uint32_t top = 0x7B, nan = 0x7F;
};
template <>
struct Limits<E3M2> {
  static constexpr std::uint32_t top = 0x1F, nan = 0x1F;
};
template <>
struct Limits<E2M3> {
  static constexpr std::uint32_t top = 0x1F, nan = 0x1F;
};
template <>
struct Limits<E2M1> {
  static constexpr std::uint32_t top = 7, nan = 7;
};

template <class E>
struct Codec : ::testing::Test {};
using Codecs = ::testing::Types<E4M3, E5M2, E3M2, E2M3, E2M1>;
TYPED_TEST_SUITE(Codec, Codecs);

TYPED_TEST(Codec, EncodesEveryBf16ToTheNearestCode) {
  for (std::uint32_t u = 0; u < 65536; ++u) {
    const float x = from_bits(u << 16);
    ASSERT_EQ(TypeParam::encode(x), nearest_code<TypeParam>(x, Limits<TypeParam>::top, Limits<TypeParam>::nan))
        << std::hex << u;
  }
}

TYPED_TEST(Codec, EncodesRegularNumbersAlikeBothWays) {
  const auto agree = [](std::uint32_t u) {
    const float x = from_bits(u);
    const bool regular = !std::isnan(x) && (u & 0x7FFFFFFFu) >= TypeParam::least_normal;
    ASSERT_EQ(TypeParam::regular(x), regular) << std::hex << u;
    if (regular) {
      ASSERT_EQ(TypeParam::encode_regular(x), TypeParam::encode(x)) << std::hex << u;
    }
  };
  for (std::uint32_t u = 0; u < 0x80000000u; u += 4093) {
    agree(u);
    agree(u | 0x80000000u);
  }
  for (const std::uint32_t u : {TypeParam::least_normal - 1, TypeParam::least_normal, 0x7F800000u, 0x7F800001u}) {
    agree(u);
    agree(u | 0x80000000u);
  }
}

TYPED_TEST(Codec, RoundsAtTheMidpointsAndBesideThem) {
  for (std::uint32_t c = 0; c < Limits<TypeParam>::top; ++c) {
    const auto middle = static_cast<float>((static_cast<double>(TypeParam::decode(c)) + TypeParam::decode(c + 1)) / 2);
    for (float sign : {1.0f, -1.0f}) {
      SCOPED_TRACE(test::shown(sign));
      const std::uint32_t s = sign < 0 ? TypeParam::sign : 0u;
      EXPECT_EQ(TypeParam::encode(sign * middle), (c % 2 == 0 ? c : c + 1) | s);
      EXPECT_EQ(TypeParam::encode(sign * from_bits(bits(middle) + 1)), (c + 1) | s);
      EXPECT_EQ(TypeParam::encode(sign * from_bits(bits(middle) - 1)), c | s);
    }
  }
}

TYPED_TEST(Codec, KeepsEveryFiniteCode) {
  for (std::uint32_t c = 0; c <= Limits<TypeParam>::top; ++c) {
    EXPECT_EQ(TypeParam::encode(TypeParam::decode(c)), c);
    EXPECT_EQ(TypeParam::encode(TypeParam::decode(c | TypeParam::sign)), c | TypeParam::sign);
    if (c > 0) {
      EXPECT_GT(TypeParam::decode(c), TypeParam::decode(c - 1));
    }
  }
  EXPECT_EQ(TypeParam::encode(std::numeric_limits<float>::max()), Limits<TypeParam>::top);
  EXPECT_EQ(TypeParam::encode(-std::numeric_limits<float>::infinity()), Limits<TypeParam>::top | TypeParam::sign);
  EXPECT_EQ(TypeParam::encode(from_bits(1)), 0u);
  EXPECT_EQ(TypeParam::encode(from_bits(0x80000001u)), TypeParam::sign);
  EXPECT_EQ(TypeParam::encode(from_bits(0xFFC00000u)), Limits<TypeParam>::nan);
  EXPECT_EQ(TypeParam::encode(from_bits(0x7F800001u)), Limits<TypeParam>::nan);
}

TEST(Codec, DecodesWhatIsNotFinite) {
  EXPECT_TRUE(std::isnan(E4M3::decode(0x7F)) && std::isnan(E4M3::decode(0xFF)));
  EXPECT_EQ(E5M2::decode(0x7C), std::numeric_limits<float>::infinity());
  EXPECT_EQ(E5M2::decode(0xFC), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(E5M2::decode(0x7D)) && std::isnan(E5M2::decode(0x7F)));
  EXPECT_EQ(E4M3::max, 448.0f);
  EXPECT_EQ(E5M2::max, 57344.0f);
  EXPECT_EQ(E3M2::max, 28.0f);
  EXPECT_EQ(E2M3::max, 7.5f);
  EXPECT_EQ(E2M1::max, 6.0f);
}

TEST(Golden, Scalars) {
  for (const auto& c : golden().at("scalar_fp8")) {
    EXPECT_EQ(E4M3::encode(real(c["x"])), word(c["e4m3"])) << c["name"];
    EXPECT_EQ(E5M2::encode(real(c["x"])), word(c["e5m2"])) << c["name"];
  }
  for (const auto& c : golden().at("scalar_e2m1")) EXPECT_EQ(E2M1::encode(real(c["x"])), word(c["e2m1"])) << c["name"];
  for (const auto& c : golden().at("e8m0")) {
    const float product = real(c["amax"]) * from_bits(0x3B124925u);
    EXPECT_EQ(bits(product), word(c["product"])) << c["name"];
    EXPECT_EQ(E8M0::encode(product), c["e8m0"].get<std::uint32_t>()) << c["name"];
    EXPECT_EQ(bits(E8M0::multiplier(E8M0::encode(product))), word(c["enc_scale"])) << c["name"];
  }
}

// Blocks of 32 of every MX format, from the oracle's own arithmetic (tests/oracle/mx_cases.py).
TEST(Golden, MxBlocks) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../oracle/mx.json");
  const auto cases = nlohmann::json::parse(file);
  int compared = 0;
  for (int i = 0; i < Registry::size; ++i)
    visit_format(static_cast<FormatId>(i), [&]<class F>() {
      if constexpr (std::is_base_of_v<MxScaling<typename F::Element>, F>) {
        for (const auto& c : cases.at(std::string(element_name(F::name)))) {
          const auto encoding = F::encoding(amax_of(c["x"]), {});
          ASSERT_EQ(encoding.scale, word(c["scale"])) << F::name;
          for (std::size_t k = 0; k < c["x"].size(); ++k, ++compared) {
            const std::uint32_t code = F::Element::encode(real(c["x"][k]) * encoding.multiplier);
            ASSERT_EQ(code, word(c["codes"][k])) << F::name << " " << c["x"][k];
            ASSERT_EQ(bits(F::Element::decode(code) * F::step(encoding.scale, 0)), word(c["values"][k])) << F::name;
          }
        }
      }
    });
  EXPECT_GT(compared, 9 * 32 * 20);
}

TEST(Golden, StochasticE2m1) {
  int compared = 0;
  for (const auto& c : golden().at("stochastic_e2m1_software"))
    for (const auto& [r8, code] : c["codes"].items()) {
      EXPECT_EQ(e2m1_stochastic(real(c["x"]), static_cast<std::uint32_t>(std::stoul(r8))), word(code))
          << c["x"] << " " << r8;
      ++compared;
    }
  EXPECT_GT(compared, 100);
}

TEST(Golden, Mxfp8Blocks) {
  for (const auto& c : golden().at("mxfp8")) {
    const auto encoding = Mxfp8::encoding(amax_of(c["x"]), {});
    EXPECT_EQ(encoding.scale, c["scale"].get<int>()) << c["name"];
    for (std::size_t i = 0; i < c["x"].size(); ++i)
      EXPECT_EQ(E4M3::encode(real(c["x"][i]) * encoding.multiplier), word(c["data"][i])) << c["name"] << " " << i;
  }
}

template <class E, Multipliers m>
void compare_fp8_scale(const nlohmann::json& c, const char* key) {
  const float s = fp8_multiplier<E, m>(real(c["amax"]), c.contains("eps") ? real(c["eps"]) : 0.0f);
  EXPECT_EQ(bits(s), word(c[key]["scale"])) << c["name"] << key;
  if (c[key].contains("scale_inv")) {
    EXPECT_EQ(bits(1.0f / s), word(c[key]["scale_inv"])) << c["name"] << key;
  }
}

TEST(Golden, Fp8BlockScales) {
  for (const auto& c : golden().at("fp8_blockwise_scale")) {
    compare_fp8_scale<E4M3, Multipliers::powers_of_two>(c, "e4m3_pow2");
    if (!c.contains("e4m3_fp32")) continue;
    compare_fp8_scale<E4M3, Multipliers::any>(c, "e4m3_fp32");
    compare_fp8_scale<E5M2, Multipliers::powers_of_two>(c, "e5m2_pow2");
    compare_fp8_scale<E5M2, Multipliers::any>(c, "e5m2_fp32");
  }
}

TEST(Golden, Nvfp4Blocks) {
  for (const auto& c : golden().at("nvfp4")) {
    const TensorScale tensor = Nvfp4::tensor_scale(real(c["global_amax"]));
    const float amax = c.contains("block_amax") ? real(c["block_amax"]) : amax_of(c["x"]);
    const auto encoding = Nvfp4::encoding(amax, tensor);
    EXPECT_EQ(encoding.scale, word(c["scale_e4m3"])) << c["name"];
    if (c.contains("S_enc")) {
      EXPECT_EQ(bits(tensor.encode), word(c["S_enc"])) << c["name"];
    }
    if (c.contains("enc_scale")) {
      EXPECT_EQ(bits(encoding.multiplier), word(c["enc_scale"])) << c["name"];
    }
    if (c.contains("code")) {
      EXPECT_EQ(bits(encoding.multiplier), word(c["enc"])) << c["name"];
      EXPECT_EQ(E2M1::encode(real(c["x"]) * encoding.multiplier), word(c["code"])) << c["name"];
    }
    if (!c.contains("packed")) continue;
    for (std::size_t i = 0; i < c["packed"].size(); ++i) {
      const std::uint32_t low = E2M1::encode(real(c["x"][2 * i]) * encoding.multiplier);
      const std::uint32_t high = E2M1::encode(real(c["x"][2 * i + 1]) * encoding.multiplier);
      EXPECT_EQ(low | high << 4, word(c["packed"][i])) << c["name"] << " " << i;
    }
  }
}

// Blocks of 16 with both candidates of "four over six", from the oracle's own arithmetic
// (tests/oracle/four_over_six_cases.py).
TEST(Golden, FourOverSixBlocks) {
  using F = Nvfp4FourOverSixOneD;
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../oracle/four_over_six.json");
  int fours = 0, ties = 0, number = 0;
  for (const auto& c : nlohmann::json::parse(file)) {
    SCOPED_TRACE(number++);
    const TensorScale tensor = F::tensor_scale(real(c["amax"]));
    const float amax = amax_of(c["x"]);
    const Encoding<F::Scale> both[] = {F::encoding(amax, tensor), F::other_encoding(amax, tensor)};
    std::uint64_t errors[2] = {};
    for (int k = 0; k < 2; ++k)
      for (const auto& x : c["x"]) {
        const float v = real(x) * both[k].multiplier;
        errors[k] += F::error(v, E2M1::decode(E2M1::encode(v)));
      }
    ASSERT_EQ(both[0].scale, c["six"].get<int>());
    ASSERT_EQ(both[1].scale, c["four"].get<int>());
    ASSERT_EQ(errors[0], c["errors"][0].get<std::uint64_t>());
    ASSERT_EQ(errors[1], c["errors"][1].get<std::uint64_t>());
    const bool takes_four = F::takes_other(both[0].scale, errors[0], both[1].scale, errors[1]);
    ASSERT_EQ(takes_four, c["takes_four"].get<bool>());
    const Encoding<F::Scale>& taken = both[takes_four];
    for (std::size_t i = 0; i < c["x"].size(); ++i) {
      const std::uint32_t code = E2M1::encode(real(c["x"][i]) * taken.multiplier);
      ASSERT_EQ(code, c["codes"][i].get<std::uint32_t>()) << i;
      ASSERT_EQ(bits(E2M1::decode(code) * F::factor_step(taken.scale, 0)), word(c["values"][i])) << i;
    }
    fours += takes_four;
    ties += E4M3::decode(both[0].scale) * static_cast<double>(errors[0]) ==
                E4M3::decode(both[1].scale) * static_cast<double>(errors[1]) &&
            both[0].scale != both[1].scale;
  }
  EXPECT_GT(fours, 40);
  EXPECT_GT(number - fours, 40);
  EXPECT_GT(ties, 4);
}

// The errors of values around every integer of units, where halves are rounded to even; and beyond the largest.
TEST(FourOverSix, ErrorsAreWholeNumbers) {
  using F = Nvfp4FourOverSix;
  for (const double units : {0.0, 0.5, 1.5, 2.5, 3.0, 1e6 + 0.5, 1048575.5, 1048576.0, 8388607.5, 67108863.0})
    for (const float sign : {1.0f, -1.0f}) {
      const auto v = static_cast<float>(std::ldexp(units, -20));
      const double wanted = std::rint(std::ldexp(static_cast<double>(v), 20));
      EXPECT_EQ(F::error(sign * v, 0.0f), static_cast<std::uint32_t>(wanted));
      EXPECT_EQ(F::error(6.0f * sign, 6.0f * sign), 0u);
    }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float beyond : {70.0f, 71.0f, 1e30f, std::numeric_limits<float>::max(), infinity})
    for (const float sign : {1.0f, -1.0f}) EXPECT_EQ(F::error(sign * beyond, sign * 6.0f), 1u << 26);
  EXPECT_EQ(F::error(from_bits(0x7FC00000u), 6.0f), 0u);
  EXPECT_EQ(F::error(from_bits(0xFFC00001u), 6.0f), 0u);
}

// Scales in units of the least one: products of scales and errors are those of exact numbers, of any scale.
TEST(FourOverSix, TheSmallerLossDecidesAndSixIfNoneIs) {
  using F = Nvfp4FourOverSix;
  for (int six = 0; six < 127; ++six)
    for (int four = 0; four < 127; ++four)
      for (const std::uint64_t error6 : {0ull, 1ull, 7ull, 1ull << 34})
        for (const std::uint64_t error4 : {0ull, 1ull, 5ull, 1ull << 34}) {
          const auto lost = [](int scale, std::uint64_t error) {
            return static_cast<double>(E4M3::decode(static_cast<std::uint32_t>(scale))) * static_cast<double>(error);
          };
          ASSERT_EQ(F::takes_other(static_cast<std::uint8_t>(six), error6, static_cast<std::uint8_t>(four), error4),
                    lost(four, error4) < lost(six, error6) || (six == 0 && four > 0))
              << six << " " << four << " " << error6 << " " << error4;
        }
}

// A block whose scale underflows with a 6 keeps numbers with a 4.
TEST(FourOverSix, TakesTheScaleThatIsThere) {
  using F = Nvfp4FourOverSixOneD;
  const TensorScale tensor = F::tensor_scale(1536.0f);
  const float amax = 6.0f * 0.9f * 0x1p-10f;  // 0.9 of half the least scale
  EXPECT_EQ(F::encoding(amax, tensor).scale, 0);
  EXPECT_EQ(F::other_encoding(amax, tensor).scale, 1);
  EXPECT_EQ(F::tensor_scale(1536.0f).encode, 1.0f);
  EXPECT_EQ(F::encoding(1536.0f, tensor).scale, E4M3::encode(256.0f));
  EXPECT_EQ(F::other_encoding(1536.0f, tensor).scale, E4M3::encode(384.0f));
}

TEST(Golden, Swizzle) {
  for (const auto& c : golden().at("swizzle"))
    EXPECT_EQ(swizzled(c["r"], c["c"], c["ncols"]), c["off"].get<std::int64_t>());
}

TEST(E8m0, IsTheLeastPowerNotBelow) {
  for (std::uint32_t u = 1; u < 0x7F80; ++u) {
    const float p = from_bits(u << 16) * from_bits(0x3B124925u);
    const std::uint32_t code = E8M0::encode(p);
    ASSERT_LE(code, 247u);
    ASSERT_LE(p, E8M0::decode(code)) << std::hex << u;
    if (code > 0) {
      ASSERT_GT(p, E8M0::decode(code - 1)) << std::hex << u;
    }
  }
  for (std::uint32_t code = 0; code < 254; ++code) EXPECT_EQ(E8M0::decode(code) * E8M0::multiplier(code), 1.0f);
  EXPECT_TRUE(std::isnan(E8M0::decode(255)) && std::isnan(E8M0::multiplier(255)));
  EXPECT_EQ(E8M0::encode(std::numeric_limits<float>::infinity()), 254u);
  EXPECT_EQ(E8M0::encode(from_bits(0x7FC00000u)), 255u);
  EXPECT_EQ(E8M0::encode(from_bits(0x7F000001u)), 254u);  // never beyond 254 from a finite p
}

TEST(Fp8Block, PowersOfTwoFillTheRangeAndNeverLeaveIt) {
  for (std::uint32_t u = 1; u < 0x7F80; ++u) {
    const float amax = from_bits(u << 16);
    const float s = fp8_multiplier<E4M3, Multipliers::powers_of_two>(amax);
    ASSERT_EQ(bits(s) & 0x7FFFFFu, 0u);
    ASSERT_LE(static_cast<double>(amax) * s, 448.0);
    if (s < 0x1p127f) {
      ASSERT_GT(static_cast<double>(amax) * s * 2, 448.0) << std::hex << u;
    }
    ASSERT_EQ(Fp8Block::encoding(amax, {}).scale, 1.0f / s);
  }
}

// A line's scale is the largest power of two not above 2688 / amax. By it scales, multipliers and steps are those of
// nvfp4's own formulas, whose quotients it does not round again.
TEST(Nvfp4Row, ScalesALineByAPowerOfTwo) {
  for (std::uint32_t u = 1; u < 0x7F80; ++u) {
    const float amax = from_bits(u << 16);
    const TensorScale line = Nvfp4Row::tensor_scale(amax);
    ASSERT_EQ(bits(line.encode) & 0x7FFFFFu, 0u);
    ASSERT_LE(static_cast<double>(amax) * line.encode, 2688.0) << std::hex << u;
    if (line.encode < 0x1p127f) {
      ASSERT_GT(static_cast<double>(amax) * line.encode * 2, 2688.0) << std::hex << u;
    }
    ASSERT_EQ(static_cast<double>(line.encode) * line.inverse, 1.0) << std::hex << u;
    for (const float of_block : {0.0f, amax, 0.5f * amax, amax / 1000}) {
      const auto row = Nvfp4Row::encoding(of_block, line), one = Nvfp4OneD::encoding(of_block, line);
      ASSERT_EQ(row.scale, one.scale) << std::hex << u;
      ASSERT_EQ(bits(row.multiplier), bits(one.multiplier)) << std::hex << u;
    }
  }
  for (int exponent = -117; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    for (std::uint32_t code = 0; code < 0x7F; ++code) {
      const TensorScale line{power, 1.0f / power};
      ASSERT_EQ(bits(Nvfp4Row::multiplier(code, line)), bits(Nvfp4OneD::multiplier(code, line))) << code << exponent;
      const float amax = std::ldexp(1344.0f, -exponent);
      if (Nvfp4Row::tensor_scale(amax).encode != power * 2) continue;  // beyond fp32's range
      ASSERT_EQ(Nvfp4Row::factor_step(static_cast<std::uint8_t>(code), amax) * static_cast<double>(power) * 2,
                E4M3::decode(code));
    }
  }
  for (const float unit : {0.0f, std::numeric_limits<float>::infinity()})
    EXPECT_EQ(Nvfp4Row::tensor_scale(unit).encode, 1.0f);
  static_assert(by_lines<Nvfp4Row> && !by_lines<Nvfp4OneD> && !traits_of<Nvfp4Row>().leaves_alpha);
  EXPECT_EQ(traits_of<Nvfp4Row>().amaxes(Side::rowwise, {3, 5}), 3);
  EXPECT_EQ(traits_of<Nvfp4Row>().amaxes(Side::columnwise, {3, 5}), 5);
}

// One scale a matrix, whatever its blocks hold: the power of two with which the amax fills the range.
template <class F>
void expect_tensor_scale() {
  constexpr float top = F::Element::max;
  for (std::uint32_t u = 1; u < 0x7F80; ++u) {
    const float amax = from_bits(u << 16);
    const TensorScale tensor = F::tensor_scale(amax);
    ASSERT_EQ(bits(tensor.encode) & 0x7FFFFFu, 0u);
    ASSERT_LE(static_cast<double>(amax) * tensor.encode, top);
    if (tensor.encode < 0x1p127f) {
      ASSERT_GT(static_cast<double>(amax) * tensor.encode * 2, top) << std::hex << u;
    }
    ASSERT_EQ(static_cast<double>(tensor.encode) * F::tensor_step(amax), 1.0) << std::hex << u;
    for (const float of_block : {0.0f, amax, 0.5f * amax})
      ASSERT_EQ(bits(F::encoding(of_block, tensor).multiplier), bits(tensor.encode));
    ASSERT_EQ(F::step(0, amax), F::tensor_step(amax));
  }
  for (const float unit : {0.0f, std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(test::shown(unit));
    EXPECT_EQ(F::tensor_scale(unit).encode, 1.0f);
    EXPECT_EQ(F::tensor_step(unit), 1.0f);
  }
}
TEST(Fp8Tensor, FillsTheRangeByOnePowerOfTwo) {
  expect_tensor_scale<Fp8Tensor>();
  expect_tensor_scale<Fp8TensorE5m2>();
  EXPECT_EQ(Fp8Tensor::tensor_scale(448.0f).encode, 1.0f);
  EXPECT_EQ(Fp8Tensor::tensor_scale(449.0f).encode, 0.5f);
  EXPECT_EQ(Fp8TensorE5m2::tensor_scale(1.0f).encode, 32768.0f);
}

// What a product's alpha takes of a tensor's scale, by a format chosen at run time.
TEST(Registry, KnowsTheStepOfATensor) {
  for (const float amax : {0.0f, 0.3f, 17.0f, 0x1p-130f}) {
    SCOPED_TRACE(test::shown(amax));
    EXPECT_EQ(tensor_step(Registry{}, id_of<Nvfp4>, amax), amax * (1.0f / 2688.0f));
    EXPECT_EQ(tensor_step(Registry{}, id_of<Nvfp4FourOverSixOneD>, amax), amax * (1.0f / 1536.0f));
    EXPECT_EQ(tensor_step(Registry{}, id_of<Fp8TensorE5m2>, amax), Fp8TensorE5m2::tensor_step(amax));
    EXPECT_EQ(tensor_step(Registry{}, id_of<Fp8Block>, amax), 1.0f);
  }
}

// Requirements on every format of the registry.
template <class F>
struct EveryFormat : ::testing::Test {};
TYPED_TEST_SUITE(EveryFormat, test::EveryFormat);

TYPED_TEST(EveryFormat, ModelsTheConcept) {
  using F = TypeParam;
  static_assert(Format<F>);
  EXPECT_FALSE(std::string_view(F::name).empty());
  // Patches of 128 x 128 hold whole blocks, and derived copies need blocks that look alike from both sides.
  EXPECT_EQ(128 % F::block.rows, 0);
  EXPECT_EQ(128 % F::block.columns, 0);
  EXPECT_EQ(F::columnwise == Columnwise::requantized, F::block.rows != F::block.columns);
  EXPECT_EQ(F::columnwise == Columnwise::transposed,
            F::columnwise_order == Order::transposed && F::block.rows == F::block.columns);
}

TYPED_TEST(EveryFormat, PlacesEveryScaleInsideItsPadding) {
  using F = TypeParam;
  for (std::int64_t rows : {1, 16, 33, 127, 128, 129, 288})
    for (std::int64_t columns : {32, 48, 64, 96, 288, 2880})
      for (Side side : {Side::rowwise, Side::columnwise}) {
        SCOPED_TRACE(test::shown(rows, columns, side));
        const Matrix m{rows, columns};
        const Matrix inner = scale_extent<F>(side, m), outer = padded_extent<F>(side, m);
        if (!F::scaled) continue;
        EXPECT_GE(outer.rows, inner.rows);
        EXPECT_LT(outer.rows, inner.rows + 128);
        EXPECT_GE(outer.columns, inner.columns);
        EXPECT_LT(outer.columns, inner.columns + 128);
      }
}

TYPED_TEST(EveryFormat, CountsBeyond32Bits) {
  using F = TypeParam;
  const Matrix m{1 << 20, 1 << 14};
  EXPECT_EQ(data_bytes<F>(m.elements()), (std::int64_t{1} << 34) * F::Element::bits / 8);
  EXPECT_EQ((data_shape<F>(Side::rowwise, m).elements() * size_of(dtype_of<typename F::Element::Storage>)),
            data_bytes<F>(m.elements()));
  if (F::scaled) {
    const ScaleLayout l = F::scale_layout(Side::rowwise);
    EXPECT_EQ(scale_extent<F>(Side::rowwise, m).elements(),
              m.elements() / (F::block.rows * F::block.columns) * l.repeat.rows * l.repeat.columns);
  }
}

TEST(Registry, FindsEveryNameOnceAndNoOther) {
  std::set<std::string> names;
  for (int i = 0; i < Registry::size; ++i) {
    const auto id = static_cast<FormatId>(i);
    EXPECT_TRUE(names.insert(std::string(traits_of(id).name)).second);
    EXPECT_EQ(find_format(traits_of(id).name), id);
  }
  for (const char* name : {"bf16", "fp8_block", "fp8_block_1d", "mxfp8", "mxfp8_2d", "nvfp4", "nvfp4_1d", "fp8_tensor",
                           "fp8_tensor_e5m2", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e3m2_2d", "mxfp6_e2m3",
                           "mxfp6_e2m3_2d", "mxfp4", "mxfp4_2d", "nvfp4_46", "nvfp4_46_1d", "nvfp4_row"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(find_format("fp8"));
  EXPECT_FALSE(find_format(""));
  EXPECT_THROW(traits_of(static_cast<FormatId>(Registry::size)), Error);
}

TEST(Layout, SidesTakeWhatTheirBlocksDivide) {
  EXPECT_TRUE(takes<Mxfp8>(Side::rowwise, {33, 96}) && !takes<Mxfp8>(Side::columnwise, {33, 96}));
  EXPECT_FALSE(takes<Mxfp8>(Side::rowwise, {33, 48}));
  EXPECT_TRUE(takes<Nvfp4OneD>(Side::rowwise, {1, 48}) && !takes<Nvfp4OneD>(Side::columnwise, {1, 48}));
  EXPECT_FALSE(takes<Nvfp4>(Side::rowwise, {33, 48}) || takes<Mxfp8Tiles>(Side::rowwise, {32, 48}));
  EXPECT_FALSE(takes<Mxfp4>(Side::columnwise, {32, 33}));  // no line begins within a byte
  EXPECT_TRUE(takes<Mxfp4>(Side::columnwise, {32, 34}) && takes<Mxfp8>(Side::columnwise, {32, 33}));
  EXPECT_TRUE(takes<Fp8Block>(Side::columnwise, {1, 7}) && takes<Fp8BlockOneD>(Side::rowwise, {127, 2880}));
  EXPECT_EQ((padded_extent<Mxfp8>(Side::rowwise, {33, 96})), (Matrix{128, 4}));
  EXPECT_EQ((padded_extent<Mxfp8>(Side::columnwise, {32, 96})), (Matrix{4, 128}));
  EXPECT_EQ((padded_extent<Fp8BlockOneD>(Side::rowwise, {33, 300})), (Matrix{3, 36}));
  EXPECT_EQ((padded_extent<Fp8BlockOneD>(Side::columnwise, {129, 30})), (Matrix{2, 32}));
  EXPECT_EQ((padded_extent<Fp8Block>(Side::rowwise, {129, 700})), (Matrix{2, 8}));
  EXPECT_EQ((padded_extent<Fp8Block>(Side::columnwise, {129, 700})), (Matrix{6, 4}));
  EXPECT_EQ((padded_extent<Nvfp4>(Side::rowwise, {16, 48})), (Matrix{128, 4}));
  EXPECT_EQ((padded_extent<Nvfp4>(Side::columnwise, {272, 48})), (Matrix{128, 20}));
  EXPECT_EQ((data_shape<Nvfp4>(Side::columnwise, {32, 48})), (Shape{48, 16}));
  EXPECT_EQ((data_shape<Mxfp8>(Side::columnwise, {32, 96})), (Shape{32, 96}));
}

}  // namespace
}  // namespace tessera::formats
