#include "io/data/utf8.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

std::string shown(std::string_view bytes) {
  Characters characters(Controls::replaced);
  std::string text;
  for (char byte : bytes) text += characters.take(byte);
  return text + characters.rest();
}

TEST(Characters, PassThroughAsTheyAre) {
  // The first and last characters of each length, one to four bytes, and those next to the surrogates.
  for (const char* text : {"", "a\tb\r\n~", "\xC2\x80\xDF\xBF", "\xE0\xA0\x80\xEF\xBF\xBF", "\xED\x9F\xBF\xEE\x80\x80",
                           "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", "Grüße, 世界 🙂"})
    EXPECT_EQ(shown(text), text);
}

TEST(Characters, ComeAsSoonAsTheyAreWhole) {
  Characters characters(Controls::replaced);
  EXPECT_EQ(characters.take('a'), "a");
  EXPECT_EQ(characters.take('\xE4'), "");
  EXPECT_EQ(characters.take('\xB8'), "");
  EXPECT_EQ(characters.take('\x96'), "\xE4\xB8\x96");
  EXPECT_EQ(characters.rest(), "");
}

TEST(Characters, ThatAreNoneAreReplacedOnceASequence) {
  const std::string no = "\xEF\xBF\xBD";
  EXPECT_EQ(shown("\x1B[2J\x07\x7F"), no + "[2J" + no + no);  // control characters of a terminal
  EXPECT_EQ(shown(std::string_view("\0a", 2)), no + "a");
  EXPECT_EQ(shown("\x80\xBF\xFF\xFE"), no + no + no + no);
  EXPECT_EQ(shown("\xC0\xAF"), no + no);              // overlong
  EXPECT_EQ(shown("\xE0\x80\x80"), no + no + no);     // overlong
  EXPECT_EQ(shown("\xED\xA0\x80"), no + no + no);     // a surrogate
  EXPECT_EQ(shown("\xF4\x90\x80\x80"), no + no + no + no);  // beyond Unicode
  EXPECT_EQ(shown("\xE4\xB8!"), no + "!");            // cut short by another
  EXPECT_EQ(shown("\xF0\x9F\x99"), no);               // cut short by the end
  EXPECT_EQ(shown("\xE4\xE4\xB8\x96"), no + "\xE4\xB8\x96");
}

TEST(Characters, OfControlAreTextWhereAsked) {
  std::string all;
  for (int byte = 0; byte < 0x80; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(text_of(all), all);
  EXPECT_EQ(text_of("\xE4\x1B\xFF\x0C\xF0\x9F"), "\xEF\xBF\xBD\x1B\xEF\xBF\xBD\x0C\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tessera
