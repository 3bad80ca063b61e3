// Compiled with contraction on, as its CMakeLists.txt says: a step of a sum is one fused multiply-add where the CPU has
// it. Everything that this file shares with others is an integer or a rounding.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/index.hpp"
#include "kernels/gemm/panels.hpp"

namespace tessera::gemm {
namespace {

// Of the vector registers, all but a few hold the sums of one tile.
#if defined(__AVX512F__)
constexpr int vector_bytes = 64, tile_rows = 12;
#else
constexpr int vector_bytes = 32, tile_rows = 6;
#endif
// The tallest band: whole cache lines of a transposed factor.
constexpr std::int64_t tallest = 48;

// A band of a plain factor is one tile. The lines of a transposed one hold rows of several, but a tall band must not
// leave a thread idle: at most 1/16 of the work may be empty.
std::int64_t height_of(const Product& p, int threads) {
  std::int64_t height = p.a == Stored::plain ? tile_rows : tallest;
  const auto fits = [&] { return round_up(p.m, height * threads) * 16 <= p.m * 17; };
  while (height > tile_rows && !fits()) height /= 2;
  return height;
}

constexpr std::int64_t sum_size(DType type) { return size_of(type == DType::f64 ? DType::f64 : DType::f32); }

template <class A>
struct Tile {
  static constexpr int lanes = vector_bytes / static_cast<int>(sizeof(A)), columns = 2 * lanes;
  typedef A Vector __attribute__((vector_size(vector_bytes), may_alias));

  // sums = a b for rows of `a`, where its element (i, p) is a[i distance + p], or a[p tile_rows + i] once packed.
  template <Stored stored>
  static void sum(A* sums, const A* a, std::int64_t distance, const A* panel, std::int64_t depth) {
    Vector s[tile_rows][2] = {};
#pragma GCC unroll 2
    for (std::int64_t p = 0; p < depth; ++p) {
      const auto* const b = reinterpret_cast<const Vector*>(panel + p * columns);
      const Vector left = b[0], right = b[1];
#pragma GCC unroll 16
      for (int i = 0; i < tile_rows; ++i) {
        const A x = stored == Stored::plain ? a[i * distance + p] : a[p * tile_rows + i];
        s[i][0] += x * left;
        s[i][1] += x * right;
      }
    }
    auto* const out = reinterpret_cast<Vector*>(sums);
    for (int i = 0; i < tile_rows; ++i)
      for (int v = 0; v < 2; ++v) out[2 * i + v] = s[i][v];
  }
};

// A square of one vector a row, turned over in log2(lanes) steps: each exchanges the off-diagonal blocks, `half` wide,
// of squares twice as wide.
template <class A>
struct Square {
  static constexpr int lanes = Tile<A>::lanes;
  typedef A Vector __attribute__((vector_size(vector_bytes), aligned(alignof(A)), may_alias));
  Vector row[lanes];

  template <int half, int... j>
  void exchange(std::integer_sequence<int, j...>) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      if (i & half) continue;
      const Vector up = row[i], down = row[i + half];
      row[i] = __builtin_shufflevector(up, down, (j & half ? lanes + j - half : j)...);
      row[i + half] = __builtin_shufflevector(up, down, (j & half ? lanes + j : j + half)...);
    }
    if constexpr (half > 1) exchange<half / 2>(std::integer_sequence<int, j...>());
  }
  static void transpose(A* to, std::int64_t to_distance, const A* from, std::int64_t from_distance) {
    Square s;
    for (int i = 0; i < lanes; ++i) s.row[i] = *reinterpret_cast<const Vector*>(from + i * from_distance);
    s.template exchange<lanes / 2>(std::make_integer_sequence<int, lanes>());
    for (int i = 0; i < lanes; ++i) *reinterpret_cast<Vector*>(to + i * to_distance) = s.row[i];
  }
};

// `n` elements, converted. A constant n becomes whole vectors.
template <class A, class T>
inline void copy(A* to, const T* from, std::int64_t n) {
  if constexpr (std::is_same_v<A, T>)
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(A));
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
}

// to[p width + l] = from[l distance + p] for l below `count`, zero from there up to the width.
template <int width, class A, class T>
void interleave(A* to, const T* from, std::int64_t distance, std::int64_t count, std::int64_t depth) {
  constexpr std::int64_t lanes = Tile<A>::lanes;
  std::int64_t l = 0;
  if constexpr (std::is_same_v<A, T>)
    for (; l + lanes <= count && depth % lanes == 0; l += lanes)
      for (std::int64_t p = 0; p < depth; p += lanes)
        Square<A>::transpose(to + p * width + l, width, from + l * distance + p, distance);
  for (; l < width; ++l)
    for (std::int64_t p = 0; p < depth; ++p)
      to[p * width + l] = l < count ? static_cast<A>(from[l * distance + p]) : A(0);
}

// What a share of the packing takes of a factor whose panels' elements follow each other in memory: as many steps of k
// as the cache fetches rows ahead. Of the other kind it takes a panel.
constexpr std::int64_t steps_of_share = 16;

// Panels of a factor [k, across] of rows `distance` apart.
template <int width, class A, class T>
void pack_steps(A* packed, const T* from, std::int64_t across, std::int64_t distance, std::int64_t k,
                std::int64_t share) {
  const std::int64_t begin = share * steps_of_share, end = std::min(begin + steps_of_share, k);
  for (std::int64_t l = 0; l < across; l += width) {
    const std::int64_t count = std::min<std::int64_t>(width, across - l);
    A* to = packed + l * k + begin * width;
    for (std::int64_t p = begin; p < end; ++p, to += width) {
      if (count == width) {
        copy(to, from + p * distance + l, width);
      } else {
        copy(to, from + p * distance + l, count);
        std::fill(to + count, to + width, A(0));
      }
    }
  }
}

// c = beta c + sums + bias, each element rounded once.
template <class A, class Out, class T>
inline void finish(const Product& p, Out* c, const A* sums, const T* bias, std::int64_t rows, std::int64_t columns) {
  const auto each = [&](const auto& value) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const A* const sum = sums + i * Tile<A>::columns;
      Out* const to = c + i * p.ldc;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < columns; ++j) to[j] = static_cast<Out>(value(sum[j], to + j, j));
    }
  };
  const auto beta = static_cast<A>(p.beta);
  if (bias)
    each([=](A sum, Out*, std::int64_t j) { return sum + static_cast<A>(bias[j]); });
  else if (beta == 0)
    each([=](A sum, Out*, std::int64_t) { return sum; });
  else
    each([=](A sum, Out* to, std::int64_t) { return beta * static_cast<A>(*to) + sum; });
}

// Rows [first, end) of a, tile by tile, as Tile::sum takes them.
template <class T>
void pack_band(const Product& p, Accumulator<T>* own, const T* a, std::int64_t first, std::int64_t end) {
  if (p.a == Stored::plain) {
    interleave<tile_rows>(own, a + first * p.lda, p.lda, end - first, p.k);
    return;
  }
  for (std::int64_t share = 0; share * steps_of_share < p.k; ++share)
    pack_steps<tile_rows>(own, a + first, end - first, p.lda, p.k, share);
}

// Rows [first, end) of c.
template <class T, class Out>
void multiply_as(const Product& p, Out* c, const T* a, const Accumulator<T>* panels, const T* bias, std::int64_t first,
                 std::int64_t end) {
  using A = Accumulator<T>;
  constexpr std::int64_t width = Tile<A>::columns;
  alignas(vector_bytes) A sums[tile_rows * width], own[tallest * Panels::deepest];
  const bool in_place = std::is_same_v<T, A> && p.a == Stored::plain && end - first == tile_rows;
  if (!in_place) pack_band(p, own, a, first, end);
  for (std::int64_t row = first; row < end; row += tile_rows)
    for (std::int64_t column = 0; column < p.n; column += width) {
      const A* const panel = panels + column * p.k;
      if (in_place)
        Tile<A>::template sum<Stored::plain>(sums, reinterpret_cast<const A*>(a) + row * p.lda, p.lda, panel, p.k);
      else
        Tile<A>::template sum<Stored::transposed>(sums, own + (row - first) * p.k, tile_rows, panel, p.k);
      const std::int64_t rows = std::min<std::int64_t>(tile_rows, end - row), columns = std::min(width, p.n - column);
      Out* const to = c + row * p.ldc + column;
      // A constant number of columns becomes whole vectors.
      if (columns == width)
        finish(p, to, sums, bias ? bias + column : nullptr, rows, width);
      else
        finish(p, to, sums, bias ? bias + column : nullptr, rows, columns);
    }
}

}  // namespace

Panels::Panels(const Product& product, int threads) : p_(product), height_(height_of(product, threads)) {
  require(p_.k <= deepest, "gemm::Panels", "k is too large for one product");
  require(p_.bias == Bias::none || p_.beta == 0, "gemm::Panels", "a bias is added to a first product only");
}

std::int64_t Panels::width(DType type) { return type == DType::f64 ? Tile<double>::columns : Tile<float>::columns; }
std::int64_t Panels::bytes() const { return round_up(p_.n, width(p_.type)) * p_.k * sum_size(p_.type); }
std::int64_t Panels::bands() const { return ceil_div(p_.m, height_); }
std::int64_t Panels::shares() const {
  return p_.b == Stored::plain ? ceil_div(p_.k, steps_of_share) : ceil_div(p_.n, width(p_.type));
}

void Panels::pack(std::byte* panels, const void* b, std::int64_t share) const {
  dispatch_real(p_.type, "gemm::Panels", [&]<class T>() {
    using A = Accumulator<T>;
    constexpr int columns = Tile<A>::columns;
    auto* const to = reinterpret_cast<A*>(panels);
    const auto* const from = static_cast<const T*>(b);
    if (p_.b == Stored::plain) return pack_steps<columns>(to, from, p_.n, p_.ldb, p_.k, share);
    const std::int64_t first = share * columns;
    interleave<columns>(to + first * p_.k, from + first * p_.ldb, p_.ldb,
                        std::min<std::int64_t>(columns, p_.n - first), p_.k);
  });
}

void Panels::multiply(void* c, const void* a, const std::byte* panels, const void* bias, std::int64_t band) const {
  const std::int64_t first = band * height_, end = std::min(first + height_, p_.m);
  dispatch_real(p_.type, "gemm::Panels", [&]<class T>() {
    using A = Accumulator<T>;
    const auto into = [&]<class Out>(Out* out) {
      multiply_as(p_, out, static_cast<const T*>(a), reinterpret_cast<const A*>(panels), static_cast<const T*>(bias),
                  first, end);
    };
    p_.sum == p_.type ? into(static_cast<T*>(c)) : into(static_cast<A*>(c));
  });
}

}  // namespace tessera::gemm
