#pragma once
// The only use of Kokkos::parallel_*. Included by kernel sources only, never by a header outside kernels/base.
#include <Kokkos_Core.hpp>
#include <chrono>
#include <cstdint>

#include "kernels/base/stream.hpp"

namespace tessera {

using Space = Kokkos::DefaultExecutionSpace;
using Memory = Space::memory_space;

/// The tensor's bytes as a typed, unmanaged view of one dimension.
template <class T> auto view_of(const Tensor& t) {
  return Kokkos::View<T*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(t.as<T>(),
                                                                           static_cast<std::size_t>(t.elements()));
}

inline Space space_of(const Stream& stream) {
  return stream.instance() ? *static_cast<const Space*>(stream.instance()) : Space();
}

/// From 512 bytes on, Kokkos passes a functor through constant memory and waits on the host for the one before it.
template <class F>
constexpr void check_functor() {
  static_assert(sizeof(F) <= 2048, "functor too large: pass a table");
}

/// Put before a loop with independent iterations: lets the host's compiler vectorise it.
#if defined(__clang__)
#define TESSERA_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TESSERA_INDEPENDENT _Pragma("GCC ivdep")
#endif

using Range = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
template <class F> void run_range(Stream& stream, const char* name, std::int64_t begin, std::int64_t end, const F& f) {
  Kokkos::parallel_for(name, Kokkos::Experimental::require(Range(space_of(stream), begin, end),
                                                           Kokkos::Experimental::WorkItemProperty::HintLightWeight), f);
}

#if defined(KOKKOS_ENABLE_CUDA)

template <class F> void run_in_pieces(Stream& stream, const char* name, std::int64_t n, const F& f) {
  run_range(stream, name, 0, n, f);  // one launch: the device does not need the host
}

#else

/// Splits a launch on the host into pieces of well below a millisecond and calls progress() between them, so that MPI
/// progresses. Each kernel adapts its piece size from launch to launch; a short launch stays one piece, and every piece
/// has work for all threads.
template <class F> void run_in_pieces(Stream& stream, const char* name, std::int64_t n, const F& f) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds brief(125), lengthy(500);
  static std::int64_t piece = 4096;
  const std::int64_t threads = space_of(stream).concurrency();
  for (std::int64_t begin = 0, end = 0; begin < n; begin = end) {
    end = n - begin < piece ? n : begin + piece;
    const Clock::time_point start = Clock::now();
    run_range(stream, name, begin, end, f);
    const Clock::duration took = Clock::now() - start;
    if (took > lengthy && end - begin > threads) piece = std::max(threads, (end - begin) / 2);
    else if (took < brief && end - begin == piece) piece *= 2;
    stream.progress();
  }
}

#endif

/// Calls f(i) for i in [0, n), in any order.
template <class F> void launch(Stream& stream, const char* name, std::int64_t n, const F& f) {
  check_functor<F>();
  stream.count_launch();
  if (stream.dry() || n <= 0) return;
  run_in_pieces(stream, name, n, f);
}

#if defined(KOKKOS_ENABLE_CUDA)

/// The threads that share one row.
class Row {
 public:
  using Member = Kokkos::TeamPolicy<Space>::member_type;
  KOKKOS_FUNCTION explicit Row(const Member& member) : member_(member) {}

  template <class F> KOKKOS_FUNCTION void each(std::int64_t n, const F& f) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member_, n), f);
    member_.team_barrier();
  }
  /// Like each(), for an f with an inner loop.
  template <class F> KOKKOS_FUNCTION void each_loop(std::int64_t n, const F& f) const { each(n, f); }
  template <class T, class F> KOKKOS_FUNCTION T sum(std::int64_t n, const F& f) const {
    T total = 0;
    Kokkos::parallel_reduce(Kokkos::TeamThreadRange(member_, n), [&](std::int64_t j, T& part) { part += f(j); }, total);
    return total;
  }
  template <class T, class F> KOKKOS_FUNCTION T max(std::int64_t n, const F& f) const {
    T top;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(member_, n),
        [&](std::int64_t j, T& part) {
          const T v = f(j);
          if (v > part) part = v;
        },
        Kokkos::Max<T>(top));
    return top;
  }
  /// f() by one thread of the row.
  template <class F> KOKKOS_FUNCTION void once(const F& f) const {
    Kokkos::single(Kokkos::PerTeam(member_), f);
    member_.team_barrier();
  }

 private:
  const Member& member_;
};

/// Calls f(row, r) for r in [0, rows), with a team of threads for each row. Sums are repeatable for a machine and row
/// length.
template <class F> void launch_rows(Stream& stream, const char* name, std::int64_t rows, const F& f) {
  check_functor<F>();
  stream.count_launch();
  if (stream.dry() || rows <= 0) return;
  Kokkos::parallel_for(
      name,
      Kokkos::Experimental::require(Kokkos::TeamPolicy<Space>(space_of(stream), static_cast<int>(rows), 128),
                                    Kokkos::Experimental::WorkItemProperty::HintLightWeight),
      KOKKOS_LAMBDA(const Row::Member& member) { f(Row(member), std::int64_t{member.league_rank()}); });
}

#else

/// One thread walks its row; sums run in sixteen fixed lanes, which the compiler turns into vectors.
class Row {
 public:
  template <class F> void each(std::int64_t n, const F& f) const {
    TESSERA_INDEPENDENT
    for (std::int64_t j = 0; j < n; ++j) f(j);
  }
  /// Like each(), for an f with an inner loop: the compiler vectorises that one.
  template <class F> void each_loop(std::int64_t n, const F& f) const {
    for (std::int64_t j = 0; j < n; ++j) f(j);
  }
  template <class T, class F> T sum(std::int64_t n, const F& f) const {
    T lane[lanes] = {};
    const std::int64_t whole = n / lanes * lanes;
    for (std::int64_t j = 0; j < whole; j += lanes)
      for (int l = 0; l < lanes; ++l) lane[l] += f(j + l);
    for (std::int64_t j = whole; j < n; ++j) lane[j - whole] += f(j);
    for (int width = lanes / 2; width > 0; width /= 2)
      for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
    return lane[0];
  }
  template <class T, class F> T max(std::int64_t n, const F& f) const {
    T lane[lanes];
    for (T& x : lane) x = Kokkos::reduction_identity<T>::max();
    const std::int64_t whole = n / lanes * lanes;
    for (std::int64_t j = 0; j < whole; j += lanes)
      for (int l = 0; l < lanes; ++l) { const T v = f(j + l); lane[l] = v > lane[l] ? v : lane[l]; }
    for (std::int64_t j = whole; j < n; ++j) { const T v = f(j); if (v > lane[j - whole]) lane[j - whole] = v; }
    T top = lane[0];
    for (T x : lane) top = x > top ? x : top;
    return top;
  }
  template <class F> void once(const F& f) const { f(); }

 private:
  static constexpr int lanes = 16;
};

template <class F> void launch_rows(Stream& stream, const char* name, std::int64_t rows, const F& f) {
  launch(stream, name, rows, [f](std::int64_t r) { f(Row(), r); });
}

#endif

}  // namespace tessera
