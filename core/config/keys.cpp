#include "core/config/keys.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "core/config/each_section.hpp"
#include "core/config/structure.hpp"
#include "core/config/value.hpp"
#include "core/config/visitor.hpp"

namespace tessera {
namespace {

class Describer : public ConfigVisitor<Describer> {
 public:
  std::vector<KeyDoc> docs;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule& rule) {
    using Value = typename ValueOf<T>::type;
    docs.push_back({KeyDoc::Kind::key, key.path, TypeName<Value>::text, standard_of(key, member),
                    allowed_for<Value>(rule), key.restart, key.help, {}});
    if constexpr (std::is_same_v<Rule, Structure>) {
      using Item = typename ItemOf<Value>::type;
      if constexpr (std::is_same_v<Item, Value>)
        docs.back().short_forms.assign(std::begin(Item::short_forms), std::end(Item::short_forms));
      static const Item item;
      if (walked_.insert(TypeName<Item>::text).second) walk(key.path, item);
    }
  }
  template <class S> const auto* enter(const Section& section, const S& member) {
    docs.push_back({KeyDoc::Kind::section, section.path, "a section", "", "", Restart::may_change, section.help, {}});
    return present(member);
  }

 private:
  std::set<std::string> walked_;  ///< types whose keys are described already

  template <class T> static std::string standard_of(const Key& key, const T& member) {
    switch (key.standard) {
      case Standard::value: return deck_text(member);
      case Standard::none: return "none (required)";
      case Standard::derived: return std::string("derived: ") + key.how;
    }
    return "";
  }
};

constexpr std::size_t longest_compared = 64;

/// Edit distance: insertions, deletions, substitutions and swaps of neighbours that turn one word into the other; at
/// most `limit`.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  std::vector<std::size_t> before, above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = above;
    above = row;
  }
  return std::min(above[b.size()], limit);
}

/// Edit distance, but 1 if a word contains the other: "hidden_size" means "hidden".
std::size_t unlikeness(std::string_view a, std::string_view b, std::size_t limit) {
  if (a == b) return 0;
  const std::string_view shorter = a.size() < b.size() ? a : b, longer = a.size() < b.size() ? b : a;
  if (shorter.size() >= 4 && longer.find(shorter) != std::string_view::npos) return 1;
  return edit_distance(a, b, limit);
}

std::string_view last_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }
std::string_view parent_of(std::string_view path) { return path.substr(0, path.size() - last_of(path).size()); }
std::size_t tolerance(std::string_view word) { return std::max<std::size_t>(1, word.size() / 3); }

}  // namespace

const std::vector<KeyDoc>& key_docs() {
  static const std::vector<KeyDoc> docs = [] {
    Describer describer;
    RunConfig::visit(every_section(), describer);
    return describer.docs;
  }();
  return docs;
}

const KeyDoc* find_key(std::string_view path) {
  for (const KeyDoc& doc : key_docs())
    if (doc.path == path) return &doc;
  return nullptr;
}

std::string nearest_key(std::string_view path) {
  const std::string_view last = last_of(path);
  if (path.size() > longest_compared) return "";
  std::string best;
  std::size_t least = tolerance(last) + 1;
  for (const KeyDoc& doc : key_docs()) {
    // A key of another section counts as one edit further away.
    const std::size_t elsewhere = parent_of(doc.path) == parent_of(path) ? 0 : 1;
    const std::size_t cost =
        std::min(unlikeness(last, last_of(doc.path), least) + elsewhere, edit_distance(path, doc.path, least));
    if (cost < least) {
      least = cost;
      best = doc.path;
    }
  }
  return best;
}

std::vector<std::string> near_words(std::string_view word, const std::vector<std::string>& words, std::size_t most) {
  if (word.size() > longest_compared) return {};
  const std::size_t limit = tolerance(word) + 1;
  std::multimap<std::size_t, std::string> near;  // by distance; equal distances stay in the order of the list
  for (const std::string& candidate : words)
    if (const std::size_t cost = unlikeness(word, candidate, limit); cost < limit) near.emplace(cost, candidate);
  std::vector<std::string> nearest;
  for (auto at = near.begin(); at != near.end() && nearest.size() < most; ++at) nearest.push_back(at->second);
  return nearest;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& words) {
  const std::vector<std::string> nearest = near_words(word, words, 1);
  return nearest.empty() ? "" : nearest.front();
}

}  // namespace tessera
