#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Version of ICU; empty in a program built without ICU, where all functions below throw Error{environment}.
std::string unicode_library();

/// Position of the first byte of `text` that is not valid UTF-8, or npos.
std::size_t broken_utf8(std::string_view text);

/// The canonical composition (NFC) of UTF-8 text.
std::string composed(std::string_view text);

/// Splits UTF-8 text into pieces by a regular expression, with all of Unicode's character classes.
class Splitter {
 public:
  /// Whether text between two matches becomes a piece of its own or is dropped.
  enum class Between { kept, dropped };

  /// Throws Error{file} with the pattern if it is not a valid regular expression.
  Splitter(const std::string& pattern, Between between);
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;

  /// The pieces in order: matches and, if kept, the text between them.
  std::vector<std::string_view> pieces(std::string_view text) const;

 private:
  struct Expression;
  std::unique_ptr<Expression> expression_;
  Between between_;
};

}  // namespace tessera
