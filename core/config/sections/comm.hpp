#pragma once
#include <chrono>
#include <cstdint>
#include <span>

#include "core/config/section.hpp"

namespace tessera {

/// Section `comm` of a deck.
struct CommConfig {
  Derived<std::int64_t> timeout_s;  ///< stays open: the run knows how long its steps take

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.derived("timeout_s", self.timeout_s, from_to(1, 1e6), may_change,
              "300; inside steps 20 times the longest, at least 30, once 20 are done",
              "Seconds that a rank waits for the others: more than two steps take");
  }

  std::chrono::seconds timeout() const { return std::chrono::seconds(timeout_s.known() ? timeout_s.get() : 300); }

  static std::span<const OtherName> other_names();

  bool operator==(const CommConfig&) const = default;
};

}  // namespace tessera
