#include "io/text/splitting.hpp"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/uregex.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include "io/text/icu/oniguruma.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

/// Some ten seconds, in ICU's units of 10,000 steps: expressions can take a time exponential in the text.
constexpr std::int32_t steps_at_most = 20'000;

void check(UErrorCode status, const char* what) {
  if (U_FAILURE(status)) throw Error(Exit::internal, fmt::format("ICU: {}: {}", what, u_errorName(status)));
}

/// ICU's view of UTF-8 text, without a copy.
class Utf8 {
 public:
  explicit Utf8(std::string_view text) {
    UErrorCode status = U_ZERO_ERROR;
    utext_openUTF8(&text_, text.data(), static_cast<std::int64_t>(text.size()), &status);
    check(status, "text");
  }
  ~Utf8() { utext_close(&text_); }
  Utf8(const Utf8&) = delete;
  Utf8& operator=(const Utf8&) = delete;
  UText* get() { return &text_; }

 private:
  UText text_ = UTEXT_INITIALIZER;
};

/// The character of valid UTF-8 at a position, which moves behind it.
UChar32 next(std::string_view text, std::size_t& at) {
  UChar32 character = 0;
  U8_NEXT(reinterpret_cast<const std::uint8_t*>(text.data()), at, text.size(), character);
  return character;
}

/// The character before a position, which moves to its begin.
UChar32 previous(std::string_view text, std::size_t& at) {
  while (at > 0 && U8_IS_TRAIL(text[--at])) {
  }
  std::size_t end = at;
  return next(text, end);
}

void append(std::string& text, UChar32 character) {
  std::uint8_t bytes[U8_MAX_LENGTH];
  std::size_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, character);
  text.append(reinterpret_cast<const char*>(bytes), length);
}

bool of_words(UChar32 c) {
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

/// The library's normal forms are those of an older Unicode: what was assigned later has none, and combines with
/// nothing.
const icu::Normalizer2& normalizer_of(NormalForm form) {
  static const auto filtered = [](const icu::Normalizer2* (*instance)(UErrorCode&)) {
    UErrorCode status = U_ZERO_ERROR;
    static const icu::UnicodeSet known(UNICODE_STRING_SIMPLE("[:age=9.0:]"), status);
    const icu::Normalizer2* const whole = instance(status);
    check(status, "normalization");
    return icu::FilteredNormalizer2(*whole, known);
  };
  static const icu::FilteredNormalizer2 nfc = filtered(&icu::Normalizer2::getNFCInstance),
                                        nfd = filtered(&icu::Normalizer2::getNFDInstance),
                                        nfkc = filtered(&icu::Normalizer2::getNFKCInstance),
                                        nfkd = filtered(&icu::Normalizer2::getNFKDInstance);
  switch (form) {
    case NormalForm::nfc: return nfc;
    case NormalForm::nfd: return nfd;
    case NormalForm::nfkc: return nfkc;
    case NormalForm::nfkd: break;
  }
  return nfkd;
}

}  // namespace

std::string unicode_library() { return U_ICU_VERSION; }

std::size_t broken_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    UChar32 character = 0;
    U8_NEXT(bytes, at, text.size(), character);
    if (character < 0) return begin;
  }
  return std::string_view::npos;
}

std::string normalized(NormalForm form, std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  std::string result;
  icu::StringByteSink<std::string> sink(&result);
  const icu::StringPiece input(text.data(), static_cast<std::int32_t>(text.size()));
  normalizer_of(form).normalizeUTF8(0, input, sink, nullptr, status);
  check(status, "normalization");
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const UChar32 character = next(text, at);
    append(result, u_tolower(character));
    if (character == 0x130) append(result, 0x307);  // the one whose lower case is two characters
  }
  return result;
}

std::size_t spaces_at_begin(std::string_view text) {
  for (std::size_t at = 0, last = 0;; last = at)
    if (at == text.size() || !u_isUWhiteSpace(next(text, at))) return last;
}

std::size_t spaces_at_end(std::string_view text) {
  for (std::size_t at = text.size(), last = at;; last = at)
    if (at == 0 || !u_isUWhiteSpace(previous(text, at))) return text.size() - last;
}

bool word_at_begin(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && of_words(next(text, at));
}

bool word_at_end(std::string_view text) {
  std::size_t at = text.size();
  return !text.empty() && of_words(previous(text, at));
}

struct Pattern::Expression {
  URegularExpression* compiled = nullptr;
  ~Expression() { uregex_close(compiled); }
};

Pattern::Pattern(const std::string& expression) : expression_(std::make_unique<Expression>()) {
  UErrorCode status = U_ZERO_ERROR;
  UParseError where{};
  expression_->compiled =
      uregex_openUText(Utf8(pattern_for_icu(expression)).get(), UREGEX_MULTILINE | UREGEX_UNIX_LINES, &where, &status);
  if (U_FAILURE(status))
    throw Error(Exit::file, fmt::format("\"{}\" is no regular expression: {} at character {}", expression,
                                        u_errorName(status), where.offset));
  uregex_setStackLimit(expression_->compiled, 0, &status);  // a run of spaces needs some words of stack a character
  uregex_setTimeLimit(expression_->compiled, steps_at_most, &status);
  check(status, "limits");
}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

std::vector<TextStretch> Pattern::stretches(std::string_view text) const {
  std::vector<TextStretch> stretches;
  URegularExpression* const compiled = expression_->compiled;
  UErrorCode status = U_ZERO_ERROR;
  Utf8 input(text);
  uregex_setUText(compiled, input.get(), &status);
  std::size_t end = 0;
  bool matched = false;
  while (uregex_findNext(compiled, &status)) {
    const auto begin = static_cast<std::size_t>(uregex_start64(compiled, 0, &status));
    const auto stop = static_cast<std::size_t>(uregex_end64(compiled, 0, &status));
    if (begin == stop && matched && begin == end) continue;  // matches nothing right behind a match
    if (begin > end) stretches.push_back({end, begin, false});
    stretches.push_back({begin, stop, true});
    end = stop;
    matched = true;
  }
  if (status == U_REGEX_STACK_OVERFLOW || status == U_REGEX_TIME_OUT || status == U_MEMORY_ALLOCATION_ERROR)
    throw Error(Exit::usage, fmt::format("the text has a run of characters from about its byte {} on that is too long "
                                         "for the tokenizer's pattern of words: break it with spaces or line ends",
                                         end));
  check(status, "search");
  if (end < text.size()) stretches.push_back({end, text.size(), false});
  return stretches;
}

std::string literal(std::string_view text) {
  std::string expression;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !u_isalnum(c) && c != '_' && c > ' ') expression += '\\';
    expression += c;
  }
  return expression;
}

}  // namespace tessera
