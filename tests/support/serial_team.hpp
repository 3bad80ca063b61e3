#pragma once
#include <algorithm>
#include <cstdint>

namespace tessera::test {

/// A team of one thread that walks its work backwards: runs the device's way through a kernel on the host. It holds
/// something, so that it is not taken for the host's own Row.
struct SerialTeam {
  int state = 0;
  template <class F>
  void each(std::int64_t n, const F& f) const {
    for (std::int64_t j = n; j-- > 0;) f(j);
  }
  template <class T, class F>
  T max(std::int64_t n, const F& f) const {
    T top = 0;
    for (std::int64_t j = 0; j < n; ++j) top = std::max(top, static_cast<T>(f(j)));
    return top;
  }
  template <class F>
  void once(const F& f) const {
    f();
  }
};

}  // namespace tessera::test
