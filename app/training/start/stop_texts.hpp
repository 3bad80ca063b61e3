#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Ends a growing text before the first of several texts that appears in it, wherever tokens divide it. Local.
class StopTexts {
 public:
  /// None of `texts` is empty (else Error{internal}).
  explicit StopTexts(std::vector<std::string> texts);

  /// Adds bytes; returns those that belong to the text for certain: before the end, and in no beginning of an end.
  std::string take(std::string_view bytes);
  /// The bytes held back before an end, once no more come; empty behind an end.
  std::string rest();
  bool ended() const { return ended_; }

 private:
  std::size_t first() const;

  std::vector<std::string> texts_;
  std::string held_;
  bool ended_ = false;
};

}  // namespace tessera
