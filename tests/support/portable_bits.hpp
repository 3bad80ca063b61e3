#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kernels/digest/digest.hpp"

namespace tessera::test {

/// Expects that bytes have the digest committed under `name` in portable_bits.txt (lines `digest name`). They must be
/// the same on every CPU, at every -march and on every back end. Such a digest may change only if the definition of the
/// bytes changes, and with it the file formats.
inline void expect_portable(const std::string& name, std::string_view bytes) {
  static const auto committed = [] {
    std::map<std::string, std::string> lines;
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "portable_bits.txt");
    for (std::string hex, what; file >> hex && std::getline(file >> std::ws, what);) lines[what] = hex;
    return lines;
  }();
  ASSERT_FALSE(bytes.empty()) << name;
  char digest[17];
  std::snprintf(digest, sizeof digest, "%016llx", static_cast<unsigned long long>(fnv1a64(bytes)));
  const auto found = committed.find(name);
  EXPECT_EQ(found == committed.end() ? "no line in portable_bits.txt" : found->second, digest) << name;
}
template <class T>
void expect_portable(const std::string& name, const std::vector<T>& values) {
  expect_portable(name, std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

}  // namespace tessera::test
