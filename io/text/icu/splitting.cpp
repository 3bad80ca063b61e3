#include "io/text/splitting.hpp"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uregex.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

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

std::string composed(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const nfc = icu::Normalizer2::getNFCInstance(status);
  check(status, "NFC");
  std::string result;
  icu::StringByteSink<std::string> sink(&result);
  nfc->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr, status);
  check(status, "NFC");
  return result;
}

struct Splitter::Expression {
  URegularExpression* compiled = nullptr;
  ~Expression() { uregex_close(compiled); }
};

Splitter::Splitter(const std::string& pattern, Between between)
    : expression_(std::make_unique<Expression>()), between_(between) {
  UErrorCode status = U_ZERO_ERROR;
  UParseError where{};
  expression_->compiled = uregex_openUText(Utf8(pattern).get(), 0, &where, &status);
  if (U_FAILURE(status))
    throw Error(Exit::file, fmt::format("\"{}\" is no regular expression: {} at character {}", pattern,
                                        u_errorName(status), where.offset));
}
Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

std::vector<std::string_view> Splitter::pieces(std::string_view text) const {
  std::vector<std::string_view> pieces;
  URegularExpression* const compiled = expression_->compiled;
  UErrorCode status = U_ZERO_ERROR;
  Utf8 input(text);
  uregex_setUText(compiled, input.get(), &status);
  std::size_t end = 0;
  const auto take = [&](std::size_t begin, std::size_t stop) {
    if (stop > begin) pieces.push_back(text.substr(begin, stop - begin));
  };
  while (uregex_findNext(compiled, &status)) {
    const auto begin = static_cast<std::size_t>(uregex_start64(compiled, 0, &status));
    const auto stop = static_cast<std::size_t>(uregex_end64(compiled, 0, &status));
    if (between_ == Between::kept) take(end, begin);
    take(begin, stop);
    end = stop;
  }
  check(status, "search");
  if (between_ == Between::kept) take(end, text.size());
  return pieces;
}

}  // namespace tessera
