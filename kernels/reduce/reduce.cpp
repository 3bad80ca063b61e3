#include "kernels/reduce/reduce.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/index.hpp"
#include "kernels/base/strips.hpp"
#include "kernels/formats/fp8_block.hpp"
#include "kernels/formats/mx.hpp"
#include "kernels/reduce/back.hpp"

namespace tessera {
namespace {

// Elements of a row of work. They stay in the first-level cache while they are read once per digit, and 2^12 digits of
// 40 bits add up exactly in fp64.
constexpr std::int64_t chunk = 4096;

/// Numbers as they are.
template <class T> struct Values {
  using Sum = T;
  const T* x;
  explicit Values(const WireArray& a) : x(static_cast<const T*>(a.values.data)) {}
  KOKKOS_INLINE_FUNCTION void move(std::int64_t by) { x += by; }
  KOKKOS_INLINE_FUNCTION T operator()(std::int64_t i) const { return x[i]; }
};
struct HalfValues {
  using Sum = float;
  const bf16* x;
  explicit HalfValues(const WireArray& a) : x(a.values.as<bf16>()) {}
  KOKKOS_INLINE_FUNCTION void move(std::int64_t by) { x += by; }
  KOKKOS_INLINE_FUNCTION float operator()(std::int64_t i) const { return x[i]; }
};
/// Codes in blocks. A value is the product of a code and a power of two, which is exact.
template <class F, int block> struct BlockValues {
  using Sum = float;
  const std::uint8_t* codes;
  const typename F::Scale* scales;
  explicit BlockValues(const WireArray& a)
      : codes(a.values.as<std::uint8_t>()), scales(a.scales.as<typename F::Scale>()) {}
  KOKKOS_INLINE_FUNCTION void move(std::int64_t by) {
    codes += by;
    scales += by / block;
  }
  KOKKOS_INLINE_FUNCTION float operator()(std::int64_t i) const {
    return F::factor_step(scales[i / block], 0.0f) * F::Element::decode(codes[i]);
  }
};

/// The parts of a sum, by rank.
template <class In> struct PartsByRank {
  In own, others;
  std::int64_t n, rank, counted;

  KOKKOS_INLINE_FUNCTION In part(std::int64_t r) const {
    if (r == rank) return own;
    In other = others;
    other.move((r < rank ? r : r - 1) * n);
    return other;
  }
};

/// out = the sum of the parts, or of out and the parts. A strip of columns takes one part after the other, so that
/// every loop is vectorised, whatever the number of ranks.
template <class In, bool more>
void sum_as(Stream& stream, const Tensor& out, const SumTerms& parts) {
  using T = typename In::Sum;
  const std::int64_t n = out.elements();
  const PartsByRank<In> in{In(parts.own), In(parts.others), n, parts.rank,
                           parts.others.values.shape[0] + 1 - parts.idle};
  T* const y = static_cast<T*>(out.data);
  launch(
      stream, more ? "add_in_order" : "sum_in_order", Strip::count(n), KOKKOS_LAMBDA(std::int64_t s) {
        const Strip strip(n, s);
        T sum[Strip::width];
        const In first = in.part(0);  // mutation: running_sum_comes_last
        strip.each([&](std::int64_t l, std::int64_t i) { sum[l] = more ? y[i] : first(i); });
        for (std::int64_t r = more ? 0 : 1; r < in.counted; ++r) {
          const In next = in.part(r);
          strip.each([&](std::int64_t l, std::int64_t i) { sum[l] += next(i); });  // mutation: sums_in_bf16
        }
        strip.each([&](std::int64_t l, std::int64_t i) { y[i] = sum[l]; });
      });
}

bool matches(const WireArray& a, const SumTerms& parts, DType sum) {
  const WireTraits traits = traits_of(parts.wire);
  if (parts.wire == GradientWire::fp32) return a.values.type == sum;
  return sum == DType::f32 && a.values.type == traits.values &&
         (traits.block == 0 ||
          (a.scales.type == traits.scales && a.scales.elements() * traits.block == a.values.elements()));
}

void check_parts(const char* who, const Tensor& out, const SumTerms& parts) {
  const Tensor &own = parts.own.values, &others = parts.others.values;
  require(others.shape.rank() == 2 && others.shape[1] == out.elements() && own.elements() == out.elements(), who,
          "own is [n], others [ranks - 1, n], out [n]");
  require(parts.rank >= 0 && parts.rank <= others.shape[0], who, "takes the number of a rank");
  require(parts.idle >= 0 && parts.idle <= others.shape[0], who, "sums the part of at least one rank");
  require((out.type == DType::f32 || out.type == DType::f64) && matches(parts.own, parts, out.type) &&
              matches(parts.others, parts, out.type),
          who, "takes f32 or f64, all of one type, or parts on a wire and f32");
}

template <bool more> void sum_parts(Stream& stream, const Tensor& out, const SumTerms& parts) {
  check_parts(more ? "add_in_order" : "sum_in_order", out, parts);
  if ((more ? reduce::add_in_order : reduce::sum_in_order)(stream, out, parts)) return;
  switch (parts.wire) {
    case GradientWire::fp32:
      return out.type == DType::f32 ? sum_as<Values<float>, more>(stream, out, parts)
                                    : sum_as<Values<double>, more>(stream, out, parts);
    case GradientWire::bf16: return sum_as<HalfValues, more>(stream, out, parts);
    case GradientWire::mxfp8: return sum_as<BlockValues<formats::Mxfp8, 32>, more>(stream, out, parts);
    case GradientWire::fp8_block: return sum_as<BlockValues<formats::Fp8BlockOneD, 128>, more>(stream, out, parts);
  }
}

// |x| as an integer that orders as |x| does; 0 if x is not finite.
TESSERA_FN inline std::int32_t magnitude(float x) {
  const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu);
  return bits < 0x7F800000 ? bits : 0;
}
TESSERA_FN inline double power_of_two(int e) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + e) << 52);
}

// Digit k of squares that are written as fixed-point numbers in units of 2^-300, with digits of 40 bits. All of it is
// exact in fp64: a square has 48 bits; adding and subtracting 1.5 2^52 units of a digit rounds to that digit. The sum
// of a row's digits fits.
class Digit {
 public:
  static constexpr int bits = 40;
  static constexpr int shift(int k) { return k * bits; }
  // The highest and lowest digit that squares of such magnitudes reach. Digits are signed, so a square may reach half a
  // digit higher.
  TESSERA_FN static int top(std::int32_t largest) { return (2 * exponent(largest) + 48) / bits; }
  TESSERA_FN static int bottom(std::int32_t smallest) { return 2 * exponent(smallest) / bits; }

  TESSERA_FN explicit Digit(int k)
      : above_(1.5 * power_of_two(52 + bits * (k + 1) - 300)),
        own_(1.5 * power_of_two(52 + bits * k - 300)),
        limit_(power_of_two(51 + bits * (k + 1) - 300)) {}
  TESSERA_FN double operator()(float x) const {
    const float finite = magnitude(x) != 0 ? x : 0.0f;
    const double square = static_cast<double>(finite) * static_cast<double>(finite);
    // At and above the limit, all bits of a square lie above this digit.
    const double rest = square < limit_ ? square - ((square + above_) - above_) : 0.0;
    return (rest + own_) - own_;
  }

 private:
  TESSERA_FN static int exponent(std::int32_t magnitude) { return magnitude < 0x800000 ? 1 : magnitude >> 23; }

  double above_, own_, limit_;
};

// words += value 2^at units; each word holds a 32-bit digit.
TESSERA_FN inline void add_at(std::int64_t* words, std::int64_t value, int at) {
  const std::int64_t low = (value & 0xFFFFFFFF) << (at % 32), high = ((value >> 32) << (at % 32)) + (low >> 32);
  const std::int64_t digits[3] = {low & 0xFFFFFFFF, high & 0xFFFFFFFF, high >> 32};
  for (int i = 0; i < 3; ++i)
    if (digits[i] != 0) Kokkos::atomic_add(words + at / 32 + i, digits[i]);
}

// Carries until every limb but the last holds 32 bits, so that any number of calls and ranks can be added.
TESSERA_FN inline void carry(std::int64_t* limbs) {
  for (int i = 0; i + 1 < ExactSum::limbs; ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= 0xFFFFFFFF;
  }
}

template <class T>
void add_squares_as(Stream& stream, const Tensor& words, const Tensor& x) {
  const auto values = view_of<T>(x);
  std::int64_t* const sums = words.as<std::int64_t>();
  const std::int64_t n = x.elements();
  launch_rows(
      stream, "add_squares", ceil_div(n, chunk), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const std::int64_t begin = r * chunk, count = n - begin < chunk ? n - begin : chunk;
        const auto value = [&](std::int64_t j) { return static_cast<float>(values(begin + j)); };
        const auto lost = row.template sum<std::int32_t>(count, [&](std::int64_t j) {
          return (std::bit_cast<std::uint32_t>(value(j)) & 0x7F800000u) == 0x7F800000u ? 1 : 0;
        });
        row.once([&] {
          if (lost != 0) Kokkos::atomic_add(sums + ExactSum::limbs, std::int64_t{lost});
        });
        const auto largest = row.template max<std::int32_t>(count, [&](std::int64_t j) { return magnitude(value(j)); });
        if (largest == 0) return;
        const auto smallest = -row.template max<std::int32_t>(count, [&](std::int64_t j) {
          const std::int32_t m = magnitude(value(j));
          return m != 0 ? -m : -0x7FFFFFFF;
        });
        for (int k = Digit::bottom(smallest); k <= Digit::top(largest); ++k) {
          const Digit digit(k);
          const auto sum = row.template sum<double>(count, [&](std::int64_t j) { return digit(value(j)); });
          const auto units = static_cast<std::int64_t>(sum * power_of_two(300 - Digit::shift(k)));
          row.once([&] { add_at(sums, units, Digit::shift(k)); });
        }
      });
}

// floor(sqrt(n)). The root in double is off by at most one, which is corrected.
TESSERA_FN inline std::uint64_t integer_root(std::uint64_t n) {
  auto root = static_cast<std::uint64_t>(::sqrt(static_cast<double>(n)));
  if (root > 0xFFFFFFFFu) root = 0xFFFFFFFFu;
  if (root * root > n) --root;
  if (root < 0xFFFFFFFFu && (root + 1) * (root + 1) <= n) ++root;
  return root;
}

// The correctly rounded square root of the limbs' number. The root of its leading 63 or 64 bits has 32 bits; one more
// bit says whether anything was cut off. Only the last conversion rounds.
TESSERA_FN inline float root_of(std::int64_t* limbs) {
  carry(limbs);
  int top = ExactSum::limbs - 1;
  while (top > 0 && limbs[top] == 0) --top;
  int bits = 0;
  for (std::int64_t rest = limbs[top]; rest != 0; rest >>= 1) ++bits;
  const int length = 32 * top + bits, cut = length > 64 ? (length - 63) / 2 * 2 : 0;
  std::uint64_t leading = 0;
  bool inexact = false;
  for (int i = top; i >= 0; --i) {
    const int at = 32 * i - cut;
    const auto digit = static_cast<std::uint64_t>(limbs[i]);
    if (at >= 0)
      leading |= digit << at;
    else if (at > -32)
      leading |= digit >> -at;
    inexact = inexact || (at <= -32 ? digit != 0 : at < 0 && (digit & ((std::uint64_t{1} << -at) - 1)) != 0);
  }
  const std::uint64_t root = integer_root(leading);
  inexact = inexact || root * root != leading;
  const auto twice = static_cast<double>(static_cast<std::int64_t>(2 * root + (inexact ? 1 : 0)));
  return static_cast<float>(::ldexp(twice, cut / 2 - 151));
}

}  // namespace

void sum_in_order(Stream& stream, const Tensor& out, const SumTerms& parts) { sum_parts<false>(stream, out, parts); }
void add_in_order(Stream& stream, const Tensor& out, const SumTerms& parts) { sum_parts<true>(stream, out, parts); }

void add_squares(Stream& stream, const Tensor& words, std::span<const Tensor> xs) {
  require(words.type == DType::i64 && words.elements() == ExactSum::words, "add_squares", "words is i64 [21]");
  for (const Tensor& x : xs)
    require(x.type == DType::f32 || x.type == DType::f64, "add_squares", "x is f32 or f64");
  if (!reduce::add_squares(stream, words, xs)) {
    for (const Tensor& x : xs) {
      if (x.type == DType::f32)
        add_squares_as<float>(stream, words, x);
      else
        add_squares_as<double>(stream, words, x);
    }
  }
  std::int64_t* const sums = words.as<std::int64_t>();
  launch(
      stream, "add_squares carry", 1, KOKKOS_LAMBDA(std::int64_t) { carry(sums); });
}

void add_not_finite(Stream& stream, const Tensor& words, const Tensor& found) {
  require(found.type == DType::u64 && found.shape.rank() == 2, "add_not_finite", "takes a column of u64");
  std::int64_t* const sums = words.as<std::int64_t>();
  const std::uint64_t* const more = found.as<std::uint64_t>();
  const std::int64_t rows = found.rows(), columns = found.columns();
  launch(
      stream, "add_not_finite", 1, KOKKOS_LAMBDA(std::int64_t) {
        for (std::int64_t i = 0; i < rows; ++i)
          sums[ExactSum::limbs] += static_cast<std::int64_t>(more[i * columns]);
      });
}

void spoil(Stream& stream, double* sum, const Tensor& found) {
  const std::uint64_t* const word = found.as<std::uint64_t>();
  launch(
      stream, "spoil", 1, KOKKOS_LAMBDA(std::int64_t) {
        if (*word != 0) *sum = std::numeric_limits<double>::quiet_NaN();
      });
}

void clip_from_squares(Stream& stream, ClipResult* result, const Tensor& words, float clip, const float* limit) {
  require(words.type == DType::i64 && words.elements() == ExactSum::words, "clip_from_squares", "words is i64 [21]");
  require(clip >= 0, "clip_from_squares", "clip is not negative");
  const std::int64_t* const sums = words.as<std::int64_t>();
  launch(
      stream, "clip_from_squares", 1, KOKKOS_LAMBDA(std::int64_t) {
        std::int64_t limbs[ExactSum::limbs];
        for (int i = 0; i < ExactSum::limbs; ++i) limbs[i] = sums[i];
        ClipResult c;
        c.norm = sums[ExactSum::limbs] == 0 ? root_of(limbs) : std::numeric_limits<float>::quiet_NaN();
        const bool finite = c.norm <= std::numeric_limits<float>::max();
        c.skip = !finite ? ClipResult::not_finite : c.norm > *limit ? ClipResult::spike : 0;
        const float quotient = clip / (c.norm + 1e-6f);
        c.coefficient = clip == 0 || quotient >= 1 ? 1.0f : quotient;
        *result = c;
      });
}

}  // namespace tessera
