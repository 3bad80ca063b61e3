#include "app/training/loop/step_timeout.hpp"

#include <algorithm>

namespace tessera {

std::chrono::seconds StepTimeout::begin_turn(Clock::time_point now) {
  if (began_) {
    longest_ = std::max(longest_, now - *began_);
    ++turns_;
  }
  began_ = now;
  constexpr int enough = 20, times = 20;
  constexpr std::chrono::seconds least{30};
  if (given_ || turns_ < enough) return whole_;  // mutation: steps_wait_as_saves_do
  return std::min(whole_, std::max(least, std::chrono::ceil<std::chrono::seconds>(times * longest_)));
}

}  // namespace tessera
