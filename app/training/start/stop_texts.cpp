#include "app/training/start/stop_texts.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

/// Length of the longest beginning of `text`, short of all of it, with which `bytes` ends.
std::size_t begun(std::string_view bytes, std::string_view text) {
  std::size_t length = std::min(bytes.size(), text.size() - 1);
  while (length > 0 && !bytes.ends_with(text.substr(0, length))) --length;
  return length;
}

}  // namespace

StopTexts::StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
  require(std::ranges::none_of(texts_, &std::string::empty), "StopTexts", "a text to stop at is not empty");
}

/// Where the first of the texts begins in what is held.
std::size_t StopTexts::first() const {
  std::size_t first = std::string::npos;
  for (const std::string& text : texts_) first = std::min(first, held_.find(text));
  return first;
}

std::string StopTexts::take(std::string_view bytes) {
  if (ended_) return "";
  held_ += bytes;
  std::size_t kept = 0;
  for (const std::string& text : texts_) kept = std::max(kept, begun(held_, text));
  const std::size_t undecided = held_.size() - kept;  // an end that begins here may become whole, before another one
  ended_ = first() <= undecided && first() != std::string::npos;  // mutation: an_end_that_began_before
  std::string sure = held_.substr(0, ended_ ? first() : undecided);
  held_ = ended_ ? "" : held_.substr(sure.size());
  return sure;
}

std::string StopTexts::rest() {
  const std::size_t end = first();
  ended_ = ended_ || end != std::string::npos;
  return std::exchange(held_, "").substr(0, end);
}

}  // namespace tessera
