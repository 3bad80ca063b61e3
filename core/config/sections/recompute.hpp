#pragma once
#include <span>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `recompute` of a deck.
struct RecomputeConfig {
  RecomputeMode mode = RecomputeMode::none;
  Derived<std::vector<RecomputeModule>> modules;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("mode", self.mode, OneOf(), may_change,
          "What backward computes again instead of keeping: nothing, the listed modules, or whole blocks. Same bits");
    v.derived("modules", self.modules, OneOf(), may_change, "[attention] for selective, else []",
              "Modules of mode selective");
  }

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const RecomputeConfig&) const = default;
};

}  // namespace tessera
