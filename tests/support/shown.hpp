#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tessera::test {

/// The values of a case, such as sizes, for SCOPED_TRACE: what fails in a loop says for which of its cases.
template <class... T>
std::string shown(const T&... values) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + ::testing::PrintToString(values)), ...);
  return text;
}

}  // namespace tessera::test
