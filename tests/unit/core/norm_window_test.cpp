#include "core/optim/norm_window.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

/// The norm of a step: about 1, and different for each step.
float norm_of(std::int64_t step) { return 1 + 0.1f * static_cast<float>(step * 7919 % 101) / 101; }

NormWindow after(std::int64_t step) {
  NormWindow window;
  for (std::int64_t s = 1; s <= step; ++s) window.add(norm_of(s));
  return window;
}

/// mean + 2 deviations of steps [step - 129, step - 2], by definition.
float expected(std::int64_t step) {
  double sum = 0, squares = 0;
  for (std::int64_t s = step - 129; s <= step - 2; ++s) sum += norm_of(s);
  for (std::int64_t s = step - 129; s <= step - 2; ++s) squares += std::pow(norm_of(s) - sum / 128, 2);
  return static_cast<float>(sum / 128 + 2 * std::sqrt(squares / 128));
}

TEST(NormWindow, LimitsFromAWholeWindowOn) {
  EXPECT_EQ(after(0).limit(1, 2), inf);
  EXPECT_EQ(after(128).limit(129, 2), inf);
  for (std::int64_t step : {130, 131, 200, 1000}) EXPECT_FLOAT_EQ(after(step - 1).limit(step, 2), expected(step));
}

TEST(NormWindow, IsTheSameWhetherTheStepBeforeWasReadOrNot) {
  for (std::int64_t step : {2, 129, 130, 131, 300})
    EXPECT_EQ(after(step - 1).limit(step, 2), after(step - 2).limit(step, 2)) << step;
  EXPECT_THROW(after(10).limit(10, 2), Error);
  EXPECT_THROW(after(10).limit(13, 2), Error);
}

TEST(NormWindow, GoesOnWhereItWasSaved) {
  for (std::int64_t step : {0, 5, 128, 129, 130, 400}) {
    NormWindow whole = after(step), part;
    part.resume(after(step).norms(), step);
    EXPECT_LE(part.norms().size(), NormWindow::length + 1);
    for (std::int64_t s = step + 1; s < step + 140; ++s) {
      EXPECT_EQ(part.limit(s, 3), whole.limit(s, 3)) << step << " " << s;
      part.add(norm_of(s));
      whole.add(norm_of(s));
    }
  }
}

TEST(NormWindow, PassesOverWhatIsNotFinite) {
  NormWindow window = after(200);
  const float before = window.limit(202, 2);
  window.add(nan);
  window.add(inf);
  EXPECT_EQ(window.norms().back(), -1);
  EXPECT_GT(window.limit(204, 2), 1);
  EXPECT_LT(window.limit(204, 2), 2 * before);
}

TEST(NormWindow, NormsAllAlikeLimitNothing) {
  NormWindow window;
  for (int s = 0; s < 200; ++s) window.add(0.5f);
  EXPECT_EQ(window.limit(202, 2), inf);
}

}  // namespace
}  // namespace tessera
