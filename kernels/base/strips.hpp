#pragma once
// Loops on top of launch.hpp that the host's compiler can vectorise. For kernel sources only.
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"

namespace tessera {

/// Calls f(i) for i in [0, n), in any order: like launch(), but in loops that the host's compiler vectorises.
template <class F> void launch_elements(Stream& stream, const char* name, std::int64_t n, const F& f) {
  constexpr std::int64_t chunk = 4096;
  launch_rows(stream, name, ceil_div(n, chunk), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const std::int64_t begin = r * chunk, count = n - begin < chunk ? n - begin : chunk;
    row.each(count, [&](std::int64_t j) { f(begin + j); });
  });
}

inline constexpr bool on_host = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;

/// The sum of f(j) for j in [0, n), in a fixed order, like row.sum(). On the host f fills a buffer first: a loop over a
/// long f, such as an exponential, is vectorised only if it has no reduction.
template <class T, class F> KOKKOS_INLINE_FUNCTION T buffered_sum(const Row& row, std::int64_t n, const F& f) {
  if (!on_host) return row.sum<T>(n, f);
  constexpr std::int64_t chunk = on_host ? 512 : 1;
  T total = 0, buffer[chunk];
  T* const part = buffer;
  for (std::int64_t begin = 0; begin < n; begin += chunk) {
    const std::int64_t count = n - begin < chunk ? n - begin : chunk;
    row.each(count, [=](std::int64_t j) { part[j] = f(begin + j); });
    total += row.sum<T>(count, [=](std::int64_t j) { return part[j]; });
  }
  return total;
}

/// The largest f(j) for j in [0, n), NaN ignored, like row.max(); vectorised on the host.
template <class T, class F> KOKKOS_INLINE_FUNCTION T buffered_max(const Row& row, std::int64_t n, const F& f) {
  if (!on_host) return row.max<T>(n, f);
  constexpr std::int64_t chunk = on_host ? 512 : 1;
  T buffer[chunk];
  T* const top = buffer;
  row.each(chunk, [=](std::int64_t j) { top[j] = Kokkos::reduction_identity<T>::max(); });
  for (std::int64_t begin = 0; begin < n; begin += chunk) {
    const std::int64_t count = n - begin < chunk ? n - begin : chunk;
    row.each(count, [=](std::int64_t j) {
      const T v = f(begin + j);
      top[j] = v > top[j] ? v : top[j];
    });
  }
  return row.max<T>(chunk, [=](std::int64_t j) { return top[j]; });
}

/// The columns of one work item: on the host 512 neighbouring ones, which fit the L1 cache; on a device one, since
/// neighbouring threads take neighbouring columns. Sums over rows or slots are kept in `T part[Strip::width]`.
class Strip {
 public:
  static constexpr std::int64_t width = on_host ? 512 : 1;

  KOKKOS_FUNCTION Strip(std::int64_t columns, std::int64_t index) : begin_(index * width) {
    const std::int64_t rest = columns - begin_;
    count_ = rest < width ? rest : width;
  }
  static std::int64_t count(std::int64_t columns) { return ceil_div(columns, width); }

  /// Calls f(l, c) for the strip's columns; the l-th one is column c of the matrix.
  template <class F> KOKKOS_FUNCTION void each(const F& f) const {
    // A constant on the device, so that its one part stays in a register.
    const std::int64_t n = on_host ? count_ : 1;
    TESSERA_INDEPENDENT
    for (std::int64_t l = 0; l < n; ++l) f(l, begin_ + l);
  }

 private:
  std::int64_t begin_, count_;
};

/// Calls f(r, strip) for every row r in [0, rows) and every strip of its columns.
template <class F>
void launch_strips(Stream& stream, const char* name, std::int64_t rows, std::int64_t columns, const F& f) {
  const std::int64_t strips = Strip::count(columns);
  launch(stream, name, rows * strips, KOKKOS_LAMBDA(std::int64_t i) {
    f(i / strips, Strip(columns, i % strips));
  });
}

}  // namespace tessera
