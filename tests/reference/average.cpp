#include "tests/reference/average.hpp"

namespace tessera::reference {

void average_step(std::span<float> average, std::span<const float> master, float rate, const ClipResult& clip) {
  if (clip.skip != 0) return;
  for (std::size_t i = 0; i < average.size(); ++i) {
    const float distance = master[i] - average[i];
    const float part = rate * distance;
    average[i] = average[i] + part;
  }
}

}  // namespace tessera::reference
