#pragma once
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/formats/registry.hpp"
#include "kernels/gemm/native.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::test {

/// What a wrong library does.
enum class Mistake {
  none, scales_in_rows, turned_tiles, no_alpha, swapped_nibbles, one_scale, forgets_beta, forgets_bias, no_number,
  refuses, last_row
};
constexpr Mistake mistakes[] = {Mistake::scales_in_rows, Mistake::turned_tiles, Mistake::no_alpha,
                                Mistake::swapped_nibbles, Mistake::one_scale, Mistake::forgets_beta,
                                Mistake::forgets_bias, Mistake::no_number, Mistake::refuses, Mistake::last_row};

/// Stands for a library whose units multiply codes of MXFP8, NVFP4 and FP8. Reads the buffers that such a library gets
/// (codes, swizzled scales and alpha) as its documents describe them, and nothing else. Memory is the host's.
class SoftwareUnits : public gemm::NativeLibrary {
 public:
  explicit SoftwareUnits(Mistake mistake = Mistake::none) : mistake_(mistake) { gemm::use_library(this); }
  ~SoftwareUnits() override { gemm::use_library(nullptr); }
  SoftwareUnits(const SoftwareUnits&) = delete;
  SoftwareUnits& operator=(const SoftwareUnits&) = delete;

  std::int64_t products = 0;  ///< computed so far
  /// The factors of the last product, [sides, sum], as read.
  const std::vector<bf16>& sides_of_a() const { return sides_[0]; }
  const std::vector<bf16>& sides_of_b() const { return sides_[1]; }

  gemm::Standing standing(const gemm::Kind& kind) const override {
    const auto is = [](FormatId f, std::string_view one, std::string_view other) {
      return traits_of(f).name == one || traits_of(f).name == other;
    };
    const bool has = (is(kind.a, "mxfp8", "mxfp8_2d") && is(kind.b, "mxfp8", "mxfp8_2d")) ||
                     (is(kind.a, "nvfp4", "nvfp4_1d") && is(kind.b, "nvfp4", "nvfp4_1d")) ||
                     (is(kind.a, "fp8_tensor", "fp8_tensor_e5m2") && is(kind.b, "fp8_tensor", "fp8_tensor"));
    return has && kind.rows == gemm::Rows::together ? gemm::Standing::claimed : gemm::Standing::none;
  }

  bool multiply(Stream& stream, const gemm::Product& product, const gemm::Addresses& at) override {
    if (product.epilogue != gemm::Epilogue::none && product.epilogue != gemm::Epilogue::bias) return false;
    gemm::Product p = product;
    p.a = p.b = std::nullopt;
    gemm::Addresses values = at;
    std::vector<bf16>* const read[] = {stream.dry() ? nullptr : &a_, stream.dry() ? nullptr : &b_};
    const bool across_a = product.stored_a() == gemm::Stored::transposed;
    values.a = values_of(at.a, {p.m, p.k, product.lda, across_a}, read[0]);
    const bool across_b = product.stored_b() == gemm::Stored::plain;
    const Operand b = values_of(at.b.list[0], {p.n, p.k, product.ldb, across_b}, read[1]);
    values.b = {&b, 1};
    if (stream.dry()) return gemm::multiply_by(stream, gemm::Route::decoded, p, values);
    if (mistake_ == Mistake::refuses) throw Error(Exit::internal, "a library that refuses");
    ++products;
    spoil(p, values);
    const bool done = gemm::multiply_by(stream, gemm::Route::decoded, p, values);
    if (mistake_ == Mistake::no_number) put(at.c.list[0].sum, std::numeric_limits<float>::quiet_NaN());
    return done;
  }

 private:
  /// How values of a factor [sides, k] would lie: `line` from row to row in memory; across: as [k, sides].
  struct Lies {
    std::int64_t sides, k, line;
    bool across;
  };
  /// The factor's values, to `place`; without one their shape. Codes of MXFP8 lie like values, others with their sum
  /// along rows.
  Operand values_of(const Operand& factor, const Lies& lies, std::vector<bf16>* place) {
    const auto [sides, k, line, across] = lies;
    const Shape shape = across ? Shape{k, sides} : Shape{sides, k};
    if (!place) return Tensor{nullptr, DType::bf16, shape};
    std::vector<bf16>& made = *place;
    made.assign(static_cast<std::size_t>(sides * k), bf16(0.0f));
    std::vector<bf16>& in_rows = sides_[&made == &a_ ? 0 : 1];
    in_rows = made;
    visit_format(factor.codes->format, [&, sides = sides, k = k, line = line, across = across]<class F>() {
      const auto* codes = static_cast<const std::uint8_t*>(factor.data.data);
      const bool swapped = mistake_ == Mistake::swapped_nibbles && &made == &a_;  // in both factors: no harm
      const bool turned = across && F::columnwise_order == formats::Order::as_source;
      const std::int64_t step = turned ? line : F::columnwise_order == formats::Order::as_source ? line : k;
      for (std::int64_t i = 0; i < sides; ++i)
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t at = turned ? j * step + i : i * step + j;
          const bf16 value(F::Element::decode(code<F>(codes, at, swapped)) * scale<F>(factor, i, j, k));
          in_rows[static_cast<std::size_t>(i * k + j)] = value;
          made[static_cast<std::size_t>(across ? j * sides + i : i * k + j)] = value;
        }
    });
    return Tensor{made.data(), DType::bf16, shape};
  }

  template <class F>
  static std::uint32_t code(const std::uint8_t* codes, std::int64_t at, bool swapped) {
    if (F::Element::bits == 8) return codes[at];
    return (at % 2 == 0) != swapped ? codes[at / 2] & 15u : codes[at / 2] >> 4;
  }

  template <class F>
  float scale(const Operand& factor, std::int64_t i, std::int64_t j, std::int64_t k) const {
    if constexpr (!formats::swizzles<F>()) {
      return 1;
    } else {
      constexpr int block = F::Element::bits == 4 ? 16 : 32;
      const std::int64_t columns = (k + block - 1) / block, column = mistake_ == Mistake::one_scale ? 0 : j / block;
      const std::int64_t in_rows = i * formats::tiles_along(columns, 4) * 4 + column;
      // offset = ((i / 128) ceil(C / 4) + c / 4) 512 + (i mod 32) 16 + (i mod 128) / 32 4 + c mod 4
      const std::int64_t tile = mistake_ == Mistake::turned_tiles
                                    ? column / 4 * formats::tiles_along(factor.codes->scales.rows(), 128) + i / 128
                                    : i / 128 * formats::tiles_along(columns, 4) + column / 4;
      const std::int64_t tiled = tile * 512 + i % 32 * 16 + i % 128 / 32 * 4 + column % 4;
      const auto* scales = static_cast<const std::uint8_t*>(factor.codes->scales.data);
      return F::factor_step(scales[mistake_ == Mistake::scales_in_rows ? in_rows : tiled], 0);
    }
  }

  void spoil(gemm::Product& p, gemm::Addresses& values) {
    if (mistake_ == Mistake::no_alpha) p.scaled = false;
    if (mistake_ == Mistake::last_row) std::fill(a_.end() - 32, a_.end(), bf16(0.0f));
    if (mistake_ == Mistake::forgets_bias && p.epilogue == gemm::Epilogue::bias) {
      p.epilogue = gemm::Epilogue::none;
      values.bias = {};
    }
    if (mistake_ == Mistake::forgets_beta && p.beta != 0) {
      p.beta = 0;
      forgotten_ = values.c.list[0];
      forgotten_.beta = 0;
      values.c = {&forgotten_, 1};
    }
  }

  static void put(const Tensor& result, float value) {
    if (result.type == DType::f32) *result.as<float>() = value;
    else *result.as<bf16>() = bf16(value);
  }

  Mistake mistake_;
  std::vector<bf16> a_, b_, sides_[2];
  Gradient forgotten_;
};

}  // namespace tessera::test
