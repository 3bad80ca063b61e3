#include "io/text/added_tokens.hpp"

#include <algorithm>

#include "io/text/splitting.hpp"

namespace tessera {
namespace {

constexpr std::size_t none = std::string_view::npos;

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  return !word_at_end(text.substr(0, begin)) && !word_at_begin(text.substr(end));
}

}  // namespace

void AddedTokens::find(std::string_view text, const std::function<void(std::int32_t)>& found,
                       const std::function<void(std::string_view)>& between) const {
  std::vector<std::size_t> places(tokens_.size(), 0);  // where each token comes next; each text is searched once
  for (std::size_t i = 0; i < tokens_.size(); ++i) places[i] = text.find(tokens_[i].content);
  std::size_t searched = 0, taken = 0, spaces = 0, spaces_end = 0;  // the white space that was last looked through
  const auto behind_spaces = [&](std::size_t at) {
    if (at < spaces || at > spaces_end) {
      spaces = at;
      spaces_end = at + spaces_at_begin(text.substr(at));
    }
    return spaces_end;
  };
  while (true) {
    std::size_t best = none;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const std::string& content = tokens_[i].content;
      if (content.empty()) continue;
      if (places[i] < searched) places[i] = text.find(content, searched);
      if (places[i] == none) continue;
      if (best == none || places[i] < places[best] ||
          (places[i] == places[best] && content.size() > tokens_[best].content.size()))
        best = i;
    }
    if (best == none) break;
    const AddedToken& token = tokens_[best];
    std::size_t begin = places[best], end = begin + token.content.size();
    searched = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = begin > taken ? begin - spaces_at_end(text.substr(taken, begin - taken)) : taken;
    if (token.rstrip) end = behind_spaces(end);
    if (begin > taken) between(text.substr(taken, begin - taken));
    if (end > begin) found(token.id);  // not in white space that the token before has taken
    taken = end;
  }
  if (taken < text.size()) between(text.substr(taken));
}

}  // namespace tessera
