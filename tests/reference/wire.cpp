#include "tests/reference/wire.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::reference {
namespace {

/// The nearest number of a floating-point grid with `bits` bits behind the binary point; ties to even. Below
/// 2^least the grid is even.
double nearest(double x, int bits, int least) {
  if (x == 0) return x;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), least) - bits);
  return std::copysign(std::nearbyint(std::abs(x) / step) * step, x);
}

}  // namespace

std::vector<float> on_wire(GradientWire wire, std::span<const float> gradients) {
  std::vector<float> out(gradients.begin(), gradients.end());
  if (wire == GradientWire::bf16)
    for (float& x : out) x = static_cast<float>(nearest(x, 7, -126));
  const auto block = static_cast<std::size_t>(traits_of(wire).block);
  for (std::size_t begin = 0; block > 0 && begin < out.size(); begin += block) {
    const std::span<float> own = std::span(out).subspan(begin, block);
    double top = 0;
    for (float x : own) top = std::max(top, std::abs(double{x}));
    // The least power of two that takes the largest magnitude to 448 or below; at least 2^-127.
    int exponent = -127;
    while (std::ldexp(top, -exponent) > 448) ++exponent;
    if (wire == GradientWire::fp8_block && top == 0) exponent = 0;
    for (float& x : own)
      x = static_cast<float>(std::ldexp(nearest(std::ldexp(double{x}, -exponent), 3, -6), exponent));
  }
  return out;
}

}  // namespace tessera::reference
