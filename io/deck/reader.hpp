#pragma once
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/keys.hpp"
#include "core/config/value.hpp"
#include "io/deck/deck.hpp"
#include "io/deck/scalar.hpp"

namespace tessera {

/// What the readers of all sections share.
struct Reading {
  Provenance provenance;
  Complaints complaints;
  std::set<std::string, std::less<>> failed;  ///< keys and sections without a usable value

  std::string where(const Place& place) const;
  void fail(const Place& place, const std::string& path, const std::string& text);
  bool failed_within(const std::string& path) const;
};

/// Visitor that fills one section from its YAML map (null: the deck leaves it out).
class SectionReader {
 public:
  SectionReader(Reading& reading, std::string prefix, Place place, Node* map)
      : reading_(reading), prefix_(std::move(prefix)), place_(std::move(place)), map_(map) {}

  template <class T, class Rule> void key(const char* name, T& member, const Rule& rule, Restart, const char*) {
    if (const Node* node = take(name)) assign(*node, name, member, rule);
    else set_origin(name, Source::standard);
  }
  template <class T, class Rule> void required(const char* name, T& member, const Rule& rule, Restart, const char*) {
    if (const Node* node = take(name)) assign(*node, name, member, rule);
    else
      reading_.fail(place_, prefix_ + name,
                    std::string("missing: ") + TypeName<T>::text + " is needed, allowed " + allowed_for<T>(rule));
  }
  template <class T, class Rule>
  void derived(const char* name, Derived<T>& member, const Rule& rule, Restart, const char*, const char*) {
    T value{};
    if (const Node* node = take(name)) {
      if (assign(*node, name, value, rule)) member = value;
    } else {
      set_origin(name, Source::derived);
    }
  }
  template <class S> void section(const char* name, S& member, const char*) {
    Node* const node = take(name);
    if (!node || is_map(*node, name)) read_section(name, member, node);
  }
  template <class S> void section(const char* name, std::optional<S>& member, const char*) {
    Node* const node = take(name);
    if (node && is_map(*node, name)) read_section(name, member.emplace(), node);
  }

  /// Complains about keys that nobody asked for and keys given twice.
  void finish();

 private:
  Node* take(const char* name);
  bool is_map(const Node& node, const char* name);
  void set_origin(const char* name, Source source);

  template <class S> void read_section(const char* name, S& member, Node* node) {
    SectionReader inside(reading_, prefix_ + name + ".", node ? node->place : place_, node);
    S::visit(member, inside);
    inside.finish();
  }

  template <class T, class Rule> bool assign(const Node& node, const char* name, T& member, const Rule& rule) {
    if (node.kind == Node::Kind::broken) {
      reading_.failed.insert(prefix_ + name);
      return false;
    }
    T value{};
    const std::string wrong = read(node, value, rule);
    if (!wrong.empty()) {
      reading_.fail(node.place, prefix_ + name, wrong);
      return false;
    }
    member = std::move(value);
    reading_.provenance.origins[prefix_ + name] = {node.place.argument.empty() ? Source::deck : Source::override,
                                                   reading_.where(node.place)};
    return true;
  }

  /// What is wrong with a value, with what is allowed and the nearest choice; empty when nothing is.
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
      if (std::find(list.begin(), list.end(), value) != list.end()) return shown(item) + " is listed twice";
      list.push_back(std::move(value));
    }
    if constexpr (std::is_same_v<Rule, Text>)
      if (list.empty() && rule != Text::line_or_empty) return "is an empty list: at least one is needed";
    return "";
  }

  template <class T> static bool allows(const Range& range, T value) {
    return range.contains(static_cast<double>(value));
  }
  template <class T> static bool allows(OneOf, const T&) { return true; }
  static bool allows(Text rule, const std::string& value);

  Reading& reading_;
  std::string prefix_;
  Place place_;
  Node* map_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace tessera
