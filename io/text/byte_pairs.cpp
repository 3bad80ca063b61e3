#include "io/text/byte_pairs.hpp"

#include <queue>
#include <tuple>

namespace tessera {
namespace {

constexpr std::size_t none = static_cast<std::size_t>(-1);

/// A symbol of the word, in a doubly linked list of the symbols that are left; id -1: merged into the symbol before.
struct Symbol {
  std::int32_t id;
  std::size_t before, after;
};

/// A pair that may be merged; valid only as long as its symbols still have these ids.
struct Candidate {
  std::int32_t rank;
  std::size_t left;
  std::int32_t left_id, right_id, id;
  bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

}  // namespace

bool BytePairs::add_merge(const std::string& left, const std::string& right) {
  const auto a = ids_.find(left), b = ids_.find(right), both = ids_.find(left + right);
  if (a == ids_.end() || b == ids_.end() || both == ids_.end()) return false;
  merges_.insert_or_assign(pair_of(a->second, b->second), Merge{next_rank_++, both->second});
  return true;
}

std::size_t BytePairs::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (whole_words_)
    if (const auto whole = ids_.find(std::string(word)); whole != ids_.end()) {
      ids.push_back(whole->second);
      return std::string_view::npos;
    }
  std::vector<Symbol> symbols;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto found = ids_.find(std::string(1, word[i]));
    if (found == ids_.end()) return i;
    symbols.push_back({found->second, i == 0 ? none : i - 1, i + 1 < word.size() ? i + 1 : none});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> open;
  const auto consider = [&](std::size_t left) {
    if (left == none || symbols[left].after == none) return;
    const std::int32_t a = symbols[left].id, b = symbols[symbols[left].after].id;
    if (const auto merge = merges_.find(pair_of(a, b)); merge != merges_.end())
      open.push({merge->second.rank, left, a, b, merge->second.id});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) consider(i);
  while (!open.empty()) {
    const Candidate best = open.top();
    open.pop();
    Symbol& left = symbols[best.left];
    if (left.id != best.left_id || left.after == none || symbols[left.after].id != best.right_id) continue;
    Symbol& right = symbols[left.after];
    left.id = best.id;
    right.id = -1;
    left.after = right.after;
    if (left.after != none) symbols[left.after].before = best.left;
    consider(left.before);
    consider(best.left);
  }
  for (std::size_t i = symbols.empty() ? none : 0; i != none; i = symbols[i].after) ids.push_back(symbols[i].id);
  return std::string_view::npos;
}

}  // namespace tessera
