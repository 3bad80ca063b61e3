// Number formats as headers alone: one block of MXFP8 by hand, and the list of all formats.
#include <cmath>
#include <cstdio>

#include "kernels/formats/registry.hpp"

using namespace tessera;

template <class... F>
void list(formats::FormatList<F...>) {
  (std::printf("%-13s %2d bits, %d x %d\n", F::name.data(), F::Element::bits, F::block.rows, F::block.columns),
   ...);
}

int main() {
  using formats::Mxfp8;
  float block[32], amax = 0;
  for (int i = 0; i < 32; ++i) {
    block[i] = 0.37f * static_cast<float>(i - 16);
    amax = std::fmax(amax, std::fabs(block[i]));
  }
  const auto [scale, multiplier] = Mxfp8::encoding(amax, {});
  std::printf("%s: amax %g, scale 2^%d\n", Mxfp8::name.data(), amax, scale - 127);
  for (float x : block) {
    const float back = Mxfp8::Element::decode(Mxfp8::Element::encode(x * multiplier)) * Mxfp8::factor_step(scale, 0.0f);
    if (std::fabs(back - x) > std::fabs(x) / 16) return 1;
  }
  list(formats::Registry{});
}
