#pragma once
#include <span>

#include "core/config/section.hpp"

namespace tessera {

/// Section `optimizer.muon` of a deck.
struct MuonConfig {
  double momentum = 0.95;
  bool nesterov = true;
  MuonCoefficients coefficients = MuonCoefficients::quintic;
  MuonScale scale = MuonScale::spectral;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("momentum", self.momentum, from_below(0, 1), fixed, "Decay of the momentum");
    v.key("nesterov", self.nesterov, OneOf(), fixed, "Step along what the momentum will be, not what it is");
    v.key("coefficients", self.coefficients, OneOf(), fixed,
          "Newton-Schulz steps that make a matrix orthogonal: 5, 5 or 8 of them");
    v.key("scale", self.scale, OneOf(), fixed,
          "Of an orthogonal step [out, in], beside the rate: sqrt(max(out, in)), sqrt(max(1, out/in)), or 0.2 "
          "sqrt(max(out, in))");
  }

  static std::span<const Effect> effects();

  bool operator==(const MuonConfig&) const = default;
};

}  // namespace tessera
