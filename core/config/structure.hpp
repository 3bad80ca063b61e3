#pragma once
#include <algorithm>
#include <concepts>
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

/// Rule of a structured value, or a list of them: visit() lists what is allowed.
struct Structure {};

template <Structured T> struct TypeName<T> { static constexpr const char* text = T::type_name; };
template <Structured T> struct TypeName<std::vector<T>> { static constexpr const char* text = "a list"; };

template <class T> struct ItemOf { using type = T; };
template <class T> struct ItemOf<std::vector<T>> { using type = T; };

/// Collects the keys of a structured value, as a deck writes them, in their order.
class KeysOfValue : public ConfigVisitor<KeysOfValue> {
 public:
  std::vector<std::pair<std::string, std::string>> texts;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if (filled(member)) texts.emplace_back(key.name, deck_text(member));
  }
};

/// {key: value, ...} of the keys that differ from their defaults, or the word that stands for them.
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
    if (!in_word && std::ranges::find(standard.texts, key) != standard.texts.end()) continue;
    if (in_word) words.push_back(key.second);
    is_word = is_word && in_word && key.second == words.front();
    text += (text.empty() ? "" : ", ") + key.first + ": " + key.second;
  }
  return is_word && !words.empty() && words.size() == std::size(T::short_forms) ? words.front() : "{" + text + "}";
}

}  // namespace tessera
