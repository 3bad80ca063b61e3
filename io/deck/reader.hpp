#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/keys.hpp"
#include "core/config/retired.hpp"
#include "core/config/structure.hpp"
#include "core/config/value.hpp"
#include "core/config/visitor.hpp"
#include "io/deck/deck.hpp"
#include "io/deck/scalar.hpp"

namespace tessera {

/// Results of reading a deck besides its values.
struct Reading {
  Provenance provenance;
  Complaints complaints;
  std::set<std::string, std::less<>> failed;  ///< keys and sections without a usable value
  bool complete = true;  ///< whether every base was read; if not, a missing key is no complaint: the base may give it

  std::string where(const DeckPosition& place) const;
  void fail(const DeckPosition& place, const std::string& path, const std::string& text);
  void miss(const DeckPosition& place, const std::string& path, const std::string& wanted);
  bool failed_within(const std::string& path) const;
};

/// What is said of a key that no deck has today: what became of it if it is retired, else the nearest key.
std::string unknown_text(const std::string& path, const std::string& value);

/// Visitor that fills a config from the deck's tree.
class DeckReader : public ConfigVisitor<DeckReader> {
 public:
  DeckReader(Reading& reading, Node& root) : reading_(reading) { maps_.push_back({root.place, &root, "", {}}); }

  template <class T, class Rule> void value(const Key& key, T& member, const Rule& rule) {
    using Value = typename ValueOf<T>::type;
    if (const Node* node = take(key.name)) assign(*node, key.path, member, rule);
    else if (key.standard == Standard::none)
      reading_.miss(maps_.back().place, key.path,
                    std::string(TypeName<Value>::text) + " is needed, allowed " + allowed_for<Value>(rule));
    else
      set_origin(key.path, key.standard == Standard::derived ? Source::derived : Source::standard);
  }
  template <class T> void value(const Key& key, T& member, const Structure& rule) {
    if (Node* const node = take(key.name)) read_structure(*node, key.path, member);
    else if (key.standard == Standard::none)
      reading_.miss(maps_.back().place, key.path,
                    std::string(TypeName<T>::text) + " is needed, allowed " + allowed_for<T>(rule));
    else set_origin(key.path, Source::standard);
  }
  template <class S> S* enter(const Section& section, S& member) {
    Node* const node = take(section.name);
    if (node && !is_map(*node, section.path)) return nullptr;
    maps_.push_back({node ? node->place : maps_.back().place, node, section.path + ".", {}});
    return &member;
  }
  /// Makes an optional section if the deck gives it.
  template <class S> S* enter(const Section& section, std::optional<S>& member) {
    Node* const node = take(section.name);
    if (!node || !is_map(*node, section.path)) return nullptr;
    maps_.push_back({node->place, node, section.path + ".", {}});
    return &member.emplace();
  }
  /// Complains about unknown keys of the innermost section, which no visit() asked for, and about keys given twice.
  void leave();

 private:
  struct Map {
    DeckPosition place;
    Node* node;
    std::string prefix;
    std::set<std::string, std::less<>> known;
    std::string word = {};  ///< path of the word that stands for this map, which complaints then name; empty: none does
  };

  Node* take(const char* name);
  bool is_map(const Node& node, const std::string& path);
  void set_origin(const std::string& path, Source source);

  /// Reads the keys of a structured value from a map, or from the word that stands for some.
  template <Structured T> void read_structure(Node& node, const std::string& path, T& member) {
    const std::size_t before = reading_.complaints.size();
    if (node.kind == Node::Kind::scalar && !std::empty(T::short_forms))
      expand(node, {std::begin(T::short_forms), std::end(T::short_forms)});
    if (node.kind == Node::Kind::map) {
      maps_.push_back({node.place, &node, path + ".", {}, node.text.empty() ? "" : path});
      walk(path, member);
      leave();
    } else {
      refuse_structure<T>(node, path);
    }
    finish_structure(node, path, before);
  }
  template <Structured T> void read_structure(Node& node, const std::string& path, std::vector<T>& list) {
    const std::size_t before = reading_.complaints.size();
    if (node.kind != Node::Kind::list) refuse_structure<std::vector<T>>(node, path);
    for (std::size_t i = 0; i < node.items.size(); ++i)
      read_structure(node.items[i], path + "[" + std::to_string(i) + "]", list.emplace_back());
    finish_structure(node, path, before);
  }
  /// Of a map, names are free.
  template <Structured T> void read_structure(Node& node, const std::string& path, std::map<std::string, T>& named) {
    const std::size_t before = reading_.complaints.size();
    if (node.kind != Node::Kind::map) refuse_structure<std::map<std::string, T>>(node, path);
    for (Node::Entry& entry : node.entries) {
      const std::string below = path + "." + entry.name;
      if (!is_word(entry.name))
        reading_.fail(entry.value.place, path, shown(entry.name) + " is no name: letters, digits and _ make one");
      else if (named.contains(entry.name))
        reading_.fail(entry.value.place, below, "is given twice");
      else
        read_structure(entry.value, below, named[entry.name]);
    }
    finish_structure(node, path, before);
  }
  template <class T> void refuse_structure(const Node& node, const std::string& path) {
    if (node.kind != Node::Kind::broken)
      reading_.fail(node.place, path,
                    shown(node) + " is not " + TypeName<T>::text + ", allowed " + allowed_for<T>(Structure()));
  }
  /// Refuses a key's value; a word that stands for several keys is refused once, as what the deck gives.
  void refuse_value(const DeckPosition& place, const std::string& path, const std::string& wrong);
  /// Notes where the value came from; it is of no use if anything in it was wrong.
  void finish_structure(const Node& node, const std::string& path, std::size_t complaints_before);
  void set_origin(const DeckPosition& place, const std::string& path);

  template <class T, class Rule> void assign(const Node& node, const std::string& path, T& member, const Rule& rule) {
    if (node.kind == Node::Kind::broken) {
      reading_.failed.insert(path);
      return;
    }
    typename ValueOf<T>::type value{};
    std::string wrong = read(node, value, rule);
    if (const Retired* const old = find_retired(path, node.text); old && !wrong.empty()) wrong = refusal_of(*old);
    if (!wrong.empty()) return refuse_value(node.place, path, wrong);
    member = std::move(value);
    set_origin(node.place, path);
  }

  /// Reads a value. Returns what is wrong with it, with what is allowed and the nearest choice; empty if it is right.
  template <class T, class Rule> static std::string read(const Node& node, T& value, const Rule& rule) {
    std::string wrong = read_scalar(node, value);
    if (wrong.empty() && !allows(rule, value)) wrong = shown(node) + " is out of range";
    if (wrong.empty()) return "";
    wrong += ", allowed " + allowed_for<T>(rule);
    if constexpr (std::is_same_v<Rule, OneOf>) {
      const std::string nearest = nearest_word(node.text, choices_of<T>());
      if (!nearest.empty()) wrong += ", did you mean " + nearest + "?";
    }
    return wrong;
  }
  template <class T, class Rule> static std::string read(const Node& node, std::vector<T>& list, const Rule& rule) {
    if (node.kind != Node::Kind::list)
      return shown(node) + " is not " + TypeName<std::vector<T>>::text + ", allowed [" + allowed_for<T>(rule) +
             ", ...]";
    for (const Node& item : node.items) {
      T value{};
      std::string wrong = read(item, value, rule);
      if (!wrong.empty()) return wrong;
      if (!std::is_arithmetic_v<T> && std::find(list.begin(), list.end(), value) != list.end())
        return shown(item) + " is listed twice";
      list.push_back(std::move(value));
    }
    if constexpr (std::is_same_v<Rule, Text>)
      if (list.empty() && rule != Text::line_or_empty) return "is an empty list: at least one is needed";
    return "";
  }

  /// Reads a map whose keys are free names.
  template <class T, class Rule>
  static std::string read(const Node& node, std::map<std::string, T>& entries, const Rule& rule) {
    if (node.kind != Node::Kind::map)
      return shown(node) + " is not " + TypeName<std::map<std::string, T>>::text + ", allowed {name: " +
             allowed_for<T>(rule) + ", ...}";
    for (const Node::Entry& entry : node.entries) {
      if (!is_word(entry.name)) return shown(entry.name) + " is no name: letters, digits and _ make one";
      T value{};
      if (const std::string wrong = read(entry.value, value, rule); !wrong.empty()) return entry.name + ": " + wrong;
      if (!entries.emplace(entry.name, std::move(value)).second) return entry.name + " is given twice";
    }
    return "";
  }

  template <class T> static bool allows(const Range& range, T value) {
    return range.contains(static_cast<double>(value));
  }
  template <class T> static bool allows(OneOf, const T&) { return true; }
  static bool allows(Text rule, const std::string& value);
  static bool is_word(const std::string& name);

  Reading& reading_;
  std::vector<Map> maps_;  ///< the deck's tree and each open section, the innermost last; null: absent from the deck
};

}  // namespace tessera
