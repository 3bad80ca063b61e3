#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A token that is found in text before the text is cut into words.
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool single_word = false;         ///< found only where no character of words stands beside it
  bool lstrip = false, rstrip = false;  ///< takes the white space before or behind it
};

/// Finds added tokens in a text: the leftmost first, of these the longest, of equals the first.
class AddedTokens {
 public:
  void add(AddedToken token) { tokens_.push_back(std::move(token)); }
  /// Calls `found` for each token and `between` for each text between them that is not empty, in order.
  void find(std::string_view text, const std::function<void(std::int32_t)>& found,
            const std::function<void(std::string_view)>& between) const;

 private:
  std::vector<AddedToken> tokens_;
};

}  // namespace tessera
