#pragma once
#include <algorithm>
#include <concepts>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/config/value.hpp"
#include "core/config/visitor.hpp"

namespace tessera {

/// A key's value that has keys itself: one value for resolved decks and comparisons, read key by key. Its struct has
/// visit(), whose rules for values with keys are Structure too, and
///   type_name     for messages, with its article: "a recipe",
///   allowed       how a deck may write it,
///   short_forms   names of its keys: a word in the value's place gives them all; empty: none does.
template <class T>
concept Structured = requires {
  { T::type_name } -> std::convertible_to<const char*>;
  { T::allowed } -> std::convertible_to<const char*>;
  T::short_forms;
};

/// Rule of a structured value, or a list or map of them: visit() lists what is allowed.
struct Structure {};

template <Structured T> struct TypeName<T> { static constexpr const char* text = T::type_name; };
template <Structured T> struct TypeName<std::vector<T>> { static constexpr const char* text = "a list"; };

template <Structured T> struct TypeName<std::map<std::string, T>> { static constexpr const char* text = "a map"; };

template <class T> struct ItemOf { using type = T; };
template <class T> struct ItemOf<std::map<std::string, T>> { using type = T; };
template <class T> struct ItemOf<std::vector<T>> { using type = T; };

/// Collects the keys of a structured value, as a deck writes them, in their order.
class KeysOfValue : public ConfigVisitor<KeysOfValue> {
 public:
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::string> needed;  ///< names of those that a deck must give

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if (filled(member)) texts.emplace_back(key.name, deck_text(member));
    if (key.standard == Standard::none) needed.emplace_back(key.name);
  }
};

/// {key: value, ...} of the keys that differ from their defaults or have none, or the word that stands for them.
template <Structured T> std::string deck_text(const T& value) {
  KeysOfValue given, standard;
  T::visit(value, given);
  const T defaults;
  T::visit(defaults, standard);
  std::vector<std::string> words;
  std::string text;
  bool is_word = true;
  for (const auto& key : given.texts) {
    const bool in_word = std::ranges::find(T::short_forms, key.first) != std::end(T::short_forms);
    const bool must = std::ranges::find(given.needed, key.first) != given.needed.end();
    if (!in_word && !must && std::ranges::find(standard.texts, key) != standard.texts.end()) continue;
    if (in_word) words.push_back(key.second);
    is_word = is_word && in_word && key.second == words.front();
    text += (text.empty() ? "" : ", ") + key.first + ": " + key.second;
  }
  return is_word && !words.empty() && words.size() == std::size(T::short_forms) ? words.front() : "{" + text + "}";
}

/// {name: value, ...}.
template <Structured T> std::string deck_text(const std::map<std::string, T>& named) {
  std::string text;
  for (const auto& [name, value] : named) text += (text.empty() ? "" : ", ") + name + ": " + deck_text(value);
  return "{" + text + "}";
}

}  // namespace tessera
