#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Version of ICU; empty in a program that was built without, which refuses all of the below (Error{environment}).
std::string unicode_library();

/// Byte at which `text` stops being UTF-8, or npos.
std::size_t broken_utf8(std::string_view text);

/// The canonical composition (NFC) of UTF-8 text.
std::string composed(std::string_view text);

/// A regular expression that cuts UTF-8 text into pieces; all of Unicode's classes are known.
class Splitter {
 public:
  /// What becomes of text between two matches: a piece of its own, or nothing.
  enum class Between { kept, dropped };

  /// Throws Error{file} that names the pattern where it is none.
  Splitter(const std::string& pattern, Between between);
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;

  /// Matches, and what lies between them, in order.
  std::vector<std::string_view> pieces(std::string_view text) const;

 private:
  struct Expression;
  std::unique_ptr<Expression> expression_;
  Between between_;
};

}  // namespace tessera
