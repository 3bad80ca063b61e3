#include "io/deck/base.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/config/keys.hpp"
#include "io/deck/deck.hpp"
#include "io/deck/scalar.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void place_in(Node& node, const std::string& base) {
  node.place.base = base;
  for (Node& item : node.items) place_in(item, base);
  for (Node::Entry& entry : node.entries) {
    entry.place.base = base;
    place_in(entry.value, base);
  }
}

/// Adds to `deck` the entries of `base` that it lacks, recursively; both are maps, below `path`.
void merge(Node& deck, Node base, const std::string& path = "") {
  for (Node::Entry& entry : base.entries) {
    Node* const own = deck.find(entry.name);
    if (!own) {
      deck.entries.push_back(std::move(entry));
      continue;
    }
    const std::string key = path + entry.name;
    if (own->kind != Node::Kind::map) continue;
    expand_short_form(entry.value, key);
    if (entry.value.kind == Node::Kind::map) merge(*own, std::move(entry.value), key + ".");
  }
}

/// Removes and returns the first `base` of a deck.
std::optional<Node::Entry> take_base(Node& root) {
  const auto found = std::ranges::find(root.entries, "base", &Node::Entry::name);
  if (root.kind != Node::Kind::map || found == root.entries.end()) return std::nullopt;
  Node::Entry base = std::move(*found);
  root.entries.erase(found);
  return base;
}

fs::path identity(const fs::path& path) {
  std::error_code unknown;
  const fs::path real = fs::weakly_canonical(path, unknown);
  return unknown ? path.lexically_normal() : real;
}

/// Reads a deck's base, the base's base, and so on.
class Chain {
 public:
  Chain(const std::string& deck, Complaints& complaints) : complaints_(complaints), files_{deck} {}

  void fill(Node& root) {
    const std::optional<Node::Entry> first = take_base(root);
    if (!first) return;
    while (const std::optional<Node::Entry> again = take_base(root))
      complaints_.push_back({again->place, "base: given twice: keep one"});
    const Node* const asked = &first->value;
    found.complete = false;  // until it was read
    const auto refuse = [&](const std::string& why) { complaints_.push_back({asked->place, "base: " + why}); };
    if (asked->kind == Node::Kind::broken) return;
    if (asked->kind != Node::Kind::scalar || asked->text.empty())
      return refuse(shown(*asked) + " is not the path of a deck");
    const std::string path = (fs::path(files_.back()).parent_path() / asked->text).lexically_normal().string();
    if (std::ranges::find(files_, identity(path), identity) != files_.end()) {
      std::string way;
      for (const std::string& file : files_) way += file + " -> ";
      return refuse(shown(*asked) + " includes itself: " + way + path);
    }
    Problems unreadable;
    const std::string text = read_deck_text(path, unreadable);
    if (!unreadable.empty()) return refuse(unreadable.list().front().text);
    files_.push_back(path);
    found.paths.push_back(path);
    found.texts += text;
    Complaints inside;
    Node base = parse_yaml(text, inside);
    place_in(base, path);
    for (Complaint& complaint : inside) {
      complaint.place.base = path;
      complaints_.push_back(std::move(complaint));
    }
    if (base.kind == Node::Kind::broken) return;
    if (base.kind != Node::Kind::map) return refuse(path + " is no deck: sections of keys and values are needed");
    found.complete = true;
    fill(base);
    merge(root, std::move(base));
  }

  Bases found;

 private:
  Complaints& complaints_;
  std::vector<std::string> files_;
};

}  // namespace

void expand_short_form(Node& word, std::string_view key) {
  if (word.kind != Node::Kind::scalar) return;
  if (const KeyDoc* const doc = find_key(key); doc && !doc->short_forms.empty()) expand(word, doc->short_forms);
}

Bases add_bases(Node& root, const std::string& path, Complaints& complaints) {
  Chain chain(path, complaints);
  chain.fill(root);
  return std::move(chain.found);
}

}  // namespace tessera
