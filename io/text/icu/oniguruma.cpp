#include "io/text/icu/oniguruma.hpp"

#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

/// Oniguruma's \w, which has these numbers of Latin-1 outside of sets and no others that are no digits.
constexpr const char* word_in_set = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr const char* word_alone = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u00B2\u00B3\u00B9\u00BC-\u00BE)";

constexpr std::array of_one_meaning{"Any",   "ASCII",     "Blank", "Emoji", "Emoji_Presentation",    "Graph",
                                    "Lower", "Lowercase", "Print", "Space", "Extended_Pictographic", "Ideographic",
                                    "Upper", "Uppercase", "White_Space"};

bool known_alike(const std::string& property) {
  return u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, property.c_str()) != UCHAR_INVALID_CODE ||
         u_getPropertyValueEnum(UCHAR_SCRIPT, property.c_str()) != UCHAR_INVALID_CODE ||
         property.find('=') != std::string::npos || std::ranges::count(of_one_meaning, property) > 0;
}

/// Reads an expression once, from left to right.
class Translation {
 public:
  explicit Translation(const std::string& expression) : all_(expression), rest_(expression) {}

  std::string result() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') escape();
      else if (sets_ > 0) in_set();
      else outside();
    }
    return std::move(made_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(Exit::file, fmt::format("\"{}\" is not supported: {} has another meaning for each library of regular "
                                        "expressions",
                                        all_, what));
  }

  void copy(std::size_t count) {
    made_ += rest_.substr(0, count);
    rest_.remove_prefix(std::min(count, rest_.size()));
  }

  void replace(std::size_t count, const std::string& by) {
    made_ += by;
    rest_.remove_prefix(count);
  }

  struct Group {
    bool folds;              ///< ignores case
    bool anchored = false;   ///< has ^ or $, so it may match nothing
  };

  bool folds() const { return groups_.back().folds; }

  void escape() {
    if (rest_.size() < 2) return copy(1);
    const char name = rest_[1];
    const std::string set = fmt::format("[{}]", word_alone), other = fmt::format("[^{}]", word_alone);
    if (std::string_view("hHvVKXyYQEgkMCcNOGRUZ").find(name) != std::string_view::npos) refuse(rest_.substr(0, 2));
    if (name == 'x' && rest_.size() > 3 && rest_[2] != '{' && rest_[2] > '7') refuse(rest_.substr(0, 4));
    if (name == 'p' || name == 'P') return property();
    if (sets_ > 0) {
      if (name == 'w') return replace(2, fmt::format("[{}]", word_in_set));
      if (name == 'W') return replace(2, fmt::format("[^{}]", word_in_set));
      if (name == 'b') return replace(2, R"(\u0008)");
    } else {
      if (name == 'w') return replace(2, set);
      if (name == 'W') return replace(2, other);
      if (name == 'b') return replace(2, fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", set));
      if (name == 'B') return replace(2, fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", set));
    }
    copy(2);
  }

  void property() {
    const std::size_t close = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || close == std::string_view::npos) return copy(2);
    if (folds()) refuse(fmt::format("{} within (?i)", rest_.substr(0, close + 1)));
    const bool negated = rest_[3] == '^';
    const std::string name(rest_.substr(negated ? 4 : 3, close - (negated ? 4 : 3)));
    if (!known_alike(name)) refuse(rest_.substr(0, close + 1));
    const char sense = negated == (rest_[1] == 'p') ? 'P' : 'p';
    replace(close + 1, fmt::format(R"(\{}{{{}}})", sense, name));
  }

  void in_set() {
    for (const char* const operation : {"--", "-[", "[:", "[]", "[^]"})
      if (rest_.starts_with(operation)) refuse(operation);
    if (rest_.starts_with("&[") && !made_.ends_with('&')) refuse("&[");
    if (rest_[0] == '[') ++sets_;
    if (rest_[0] == ']') --sets_;
    copy(1);
  }

  void outside() {
    if (rest_.starts_with("(?#")) refuse("(?#");
    if (rest_[0] == '(') return group();
    if (rest_[0] == ')') return end_of_group();
    if (rest_[0] == '{') return count();
    if (rest_[0] == '^' || rest_[0] == '$') groups_.back().anchored = true;
    if (rest_[0] == '[') return in_set();
    copy(1);
  }

  /// A group, or a change of options, of which case alone is known alike, and only for a group or the whole.
  void group() {
    const std::size_t end = rest_.starts_with("(?") ? rest_.find_first_not_of("imswxudaW-", 2) : std::string_view::npos;
    const bool options = end != std::string_view::npos && end > 2 && (rest_[end] == ':' || rest_[end] == ')');
    if (!options) {
      groups_.push_back({folds()});
      return copy(1);
    }
    const std::string_view all = rest_.substr(0, end + 1), set = rest_.substr(2, end - 2);
    if (set.find_first_not_of("i-") != std::string_view::npos) refuse(all);
    if (rest_[end] == ')' && !made_.empty()) refuse(all);
    groups_.push_back({set.find('i') < set.find('-')});
    copy(end + 1);
  }

  /// A group that may match nothing is counted otherwise.
  void end_of_group() {
    const Group group = groups_.back();
    copy(1);
    if (group.anchored && rest_.starts_with("{")) refuse("a count behind a group with ^ or $");
    if (groups_.size() > 1) groups_.pop_back();
    groups_.back().anchored |= group.anchored;
  }

  /// A count of repetitions, which + makes no possessive one, and ? a lazy one only of a range.
  void count() {
    const std::size_t close = rest_.find('}');
    if (close == std::string_view::npos) return copy(1);
    const std::string_view whole = rest_.substr(0, close + 2);
    const bool range = whole.find(',') != std::string_view::npos;
    if (whole.ends_with("}+") || (whole.ends_with("}?") && !range)) refuse(whole);
    copy(close + 1);
  }

  const std::string& all_;
  std::string_view rest_;
  std::string made_;
  int sets_ = 0;
  std::vector<Group> groups_{{false}};  ///< the open ones; first the whole
};

}  // namespace

std::string pattern_for_icu(const std::string& expression) { return Translation(expression).result(); }

}  // namespace tessera
