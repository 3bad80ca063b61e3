#include "kernels/attention/attention.hpp"
#include "kernels/attention/back.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"

namespace tessera {
namespace {

// Rotates one head of one token: x'[j] = x[j] cos - x[j + R/2] sin, x'[j + R/2] = x[j + R/2] cos + x[j] sin.
template <class T>
void rotate(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, Accumulator<T> sign,
            const Tensor& positions) {
  using A = Accumulator<T>;
  const auto x = view_of<T>(qkv);
  const auto angle = view_of<A>(table);
  const std::int64_t length = shape.length, dim = shape.head_dim, columns = shape.columns();
  const std::int64_t turned = table.columns(), half = turned / 2;
  const std::int32_t* const position = positions ? positions.as<std::int32_t>() : nullptr;
  const std::int64_t heads = shape.heads + shape.kv_heads, rows = shape.sequences * length * heads;
  launch_rows(
      stream, "rotary", rows, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const std::int64_t token = r / heads, head = r % heads;
        const std::int64_t place = position != nullptr ? position[token] : token % length;
        const std::int64_t begin = token * columns + head * dim, at = place * turned;
        row.each(half, [&](std::int64_t j) {
          const A cosine = angle(at + j), sine = sign * angle(at + half + j);
          const A low = static_cast<A>(x(begin + j)), high = static_cast<A>(x(begin + half + j));
          x(begin + j) = static_cast<T>(low * cosine - high * sine);
          x(begin + half + j) = static_cast<T>(high * cosine + low * sine);
        });
      });
}

// The angle per position of a pair whose unscaled angle is `turn` (context extension by rope scaling).
KOKKOS_INLINE_FUNCTION double slowed(double turn, const RopeScaling& by) {
  if (by.factor == 1) return turn;
  const double turns = by.original_seq_len * turn / 6.283185307179586476925;
  if (turns < by.low_freq_factor) return turn / by.factor;
  if (turns > by.high_freq_factor) return turn;
  const double share = (turns - by.low_freq_factor) / (by.high_freq_factor - by.low_freq_factor);
  return (1 - share) * turn / by.factor + share * turn;
}

template <class A>
void fill_table(Stream& stream, const Tensor& table, double base, const RopeScaling& scaling) {
  const auto t = view_of<A>(table);
  const std::int64_t dim = table.columns(), half = dim / 2;
  launch_rows(
      stream, "rotary_table", table.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t position) {
        row.each(half, [&](std::int64_t j) {
          const double turn =
              // mutation: angles_of_the_whole_head
              slowed(Kokkos::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(dim)), scaling);
          const double angle = static_cast<double>(position) * turn;
          t(position * dim + j) = static_cast<A>(Kokkos::cos(angle));
          t(position * dim + half + j) = static_cast<A>(Kokkos::sin(angle));
        });
      });
}

}  // namespace

void rotary(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, Rotation direction,
            const Tensor& positions) {
  constexpr const char* kernel = "rotary";
  require(table.shape.rank() == 2 && table.columns() > 0 && table.columns() % 2 == 0 &&
              table.columns() <= shape.head_dim,
          kernel, "the table is [T, R] with R even and at most head_dim");
  require(qkv.elements() == shape.sequences * shape.length * shape.columns(), kernel, "qkv is [tokens, (H + 2 G) D]");
  require(table.type == (qkv.type == DType::f64 ? DType::f64 : DType::f32), kernel,
          "the table is fp32 (fp64 for fp64)");
  require(table.rows() == shape.length, kernel, "the table is [T, R]");
  const std::int64_t tokens = shape.sequences * shape.length;
  require(!positions || (positions.type == DType::i32 && positions.elements() == tokens), kernel,
          "positions are i32 [tokens]");
  const int sign = direction == Rotation::forward ? 1 : -1;
  if (attention::rotary(stream, shape, qkv, table, static_cast<float>(sign), positions)) return;
  dispatch_real(qkv.type, kernel, [&]<class T>() { rotate<T>(stream, shape, qkv, table, sign, positions); });
}

void rotary_table(Stream& stream, const Tensor& table, double base, const RopeScaling& scaling) {
  constexpr const char* kernel = "rotary_table";
  require(table.shape.rank() == 2 && table.columns() % 2 == 0 && base > 0, kernel, "the table is [T, R] with R even");
  require(scaling.factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor, kernel, "scales what turns slower");
  if (table.type == DType::f64) return fill_table<double>(stream, table, base, scaling);
  require(table.type == DType::f32, kernel, "the table is fp32 or fp64");
  fill_table<float>(stream, table, base, scaling);
}

}  // namespace tessera
