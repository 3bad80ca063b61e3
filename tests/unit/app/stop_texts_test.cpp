#include "app/training/start/stop_texts.hpp"

#include <gtest/gtest.h>

#include <random>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

/// The text before the stop that a search in the whole finds first.
std::string cut(const std::string& whole, const std::vector<std::string>& stops) {
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops) first = std::min(first, whole.find(stop));
  return whole.substr(0, first);
}

TEST(StopTexts, EndWhereverTokensDivideThem) {
  std::mt19937 draw(1);
  const auto text = [&](std::size_t least, std::size_t most) {
    std::string made;
    for (std::size_t n = least + draw() % (most - least + 1); n > 0; --n) made += "aab"[draw() % 3];
    return made;
  };
  int ended = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::string> stops;
    for (std::size_t n = draw() % 3; n > 0; --n) stops.push_back(text(1, 6));
    const std::string whole = text(0, 30);
    StopTexts stop(stops);
    std::string shown;
    for (std::size_t at = 0; at < whole.size() && !stop.ended();) {
      const std::size_t some = 1 + draw() % 4;
      shown += stop.take(whole.substr(at, some));
      at += some;
      ASSERT_TRUE(cut(whole, stops).starts_with(shown));
    }
    const bool here = cut(whole, stops) != whole;
    ASSERT_EQ(shown + stop.rest(), cut(whole, stops)) << whole;
    ASSERT_EQ(stop.ended(), here);
    ended += here;
  }
  EXPECT_GT(ended, 300);
  EXPECT_THROW(StopTexts({"a", ""}), Error);
}

TEST(StopTexts, WithoutAnyNothingIsHeldBack) {
  StopTexts none({});
  EXPECT_EQ(none.take("abc"), "abc");
  EXPECT_EQ(none.rest(), "");
}

}  // namespace
}  // namespace tessera
