#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "core/config/choices.hpp"
#include "core/config/rule.hpp"

namespace tessera {

/// A value as a deck writes it. Numbers are their shortest decimal that reads back to the same bits; text is in double
/// quotes with escapes, lists in brackets, maps in braces.
std::string deck_text(double value);
std::string deck_text(const std::string& value);
template <class T> std::string deck_text(const T& value);
template <class T> std::string deck_text(const std::vector<T>& list) {
  std::string text;
  for (const T& item : list) text += (text.empty() ? "" : ", ") + deck_text(item);
  return "[" + text + "]";
}
inline std::string deck_text(const std::map<std::string, std::string>& words) {
  std::string text;
  for (const auto& [word, value] : words) text += (text.empty() ? "" : ", ") + word + ": " + deck_text(value);
  return "{" + text + "}";
}
template <class T> std::string deck_text(const Derived<T>& value) { return deck_text(value.get()); }
template <class T> std::string deck_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (Choice<T>) return std::string(name_of(value));
  else return std::to_string(value);
}

/// Name of a member's type for messages, with its article: "an integer".
template <class T> struct TypeName;
template <> struct TypeName<bool> { static constexpr const char* text = "a boolean"; };
template <> struct TypeName<std::int64_t> { static constexpr const char* text = "an integer"; };
template <> struct TypeName<std::uint64_t> { static constexpr const char* text = "an integer"; };
template <> struct TypeName<double> { static constexpr const char* text = "a number"; };
template <> struct TypeName<std::string> { static constexpr const char* text = "a text"; };
template <Choice E> struct TypeName<E> { static constexpr const char* text = "a choice"; };
template <> struct TypeName<std::vector<std::string>> { static constexpr const char* text = "a list of texts"; };
template <> struct TypeName<std::vector<std::int64_t>> { static constexpr const char* text = "a list of integers"; };
template <> struct TypeName<std::vector<double>> { static constexpr const char* text = "a list of numbers"; };
template <> struct TypeName<std::map<std::string, std::string>> {
  static constexpr const char* text = "a map of texts";
};
template <Choice E> struct TypeName<std::vector<E>> { static constexpr const char* text = "a list of choices"; };

/// The names of a boolean's, a choice's or a list of choices' allowed values.
template <class T> std::vector<std::string> choices_of() {
  if constexpr (std::is_same_v<T, bool>) return {"true", "false"};
  else if constexpr (Choice<T>) {
    std::vector<std::string> names;
    for (const Name<T>& name : Names<T>::table) names.emplace_back(name.text);
    return names;
  } else return choices_of<typename T::value_type>();
}

/// A rule as messages state it: "layer | rms", "1 to 8", "one line of text".
std::string allowed_text(Text rule);
inline std::string allowed_text(const Range& range) { return range.text(); }
std::string joined(const std::vector<std::string>& words, const char* separator);

template <class T, class Rule> std::string allowed_for(const Rule& rule) {
  if constexpr (requires { T::allowed; }) return T::allowed;
  else if constexpr (requires { T::mapped_type::allowed; })
    return "{name: " + std::string(T::mapped_type::allowed) + ", ...}";
  else if constexpr (requires { T::value_type::allowed; }) return "[" + std::string(T::value_type::allowed) + ", ...]";
  else if constexpr (std::is_same_v<Rule, OneOf>) return joined(choices_of<T>(), " | ");
  else return allowed_text(rule);
}

}  // namespace tessera
