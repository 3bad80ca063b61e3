#pragma once

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace tessera::test {

/// An enumerator's name, or its number where it has none; other values as GoogleTest prints them.
template <class T>
std::string shown_one(const T& value) {
  if constexpr (requires { std::string(name_of(value)); })
    return std::string(name_of(value));
  else if constexpr (std::is_enum_v<T>)
    return std::to_string(static_cast<long long>(value));
  else
    return ::testing::PrintToString(value);
}

/// The values of a case, such as sizes, for SCOPED_TRACE: what fails in a loop says for which of its cases.
template <class... T>
std::string shown(const T&... values) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + shown_one(values)), ...);
  return text;
}

}  // namespace tessera::test
