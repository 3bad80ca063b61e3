// Memory in large pages: blocks apart from each other, at their boundaries, and given back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>

#include "kernels/base/large_pages.hpp"

namespace tessera {
namespace {

TEST(LargePages, AreBlocksAtBoundariesApartFromEachOther) {
  constexpr std::size_t count = 5;
  const LargePages pages(count);
  ASSERT_EQ(pages.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::ssize(pages[i]), LargePages::bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages[i].data()) % LargePages::bytes, 0u);
    EXPECT_TRUE(std::ranges::all_of(pages[i], [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(pages[i], static_cast<std::byte>(i + 1));
  }
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_TRUE(std::ranges::all_of(pages[i], [&](std::byte b) { return b == static_cast<std::byte>(i + 1); })) << i;
}

/// What the system says of the mapping that holds an address; empty: there is none.
std::string mapping_of(std::uintptr_t address) {
  std::ifstream file("/proc/self/smaps");
  std::string found;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2)
      inside = begin <= address && address < end;
    if (inside) found += line + "\n";
  }
  return found;
}

TEST(LargePages, AreAskedForAndGivenBack) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GTEST_SKIP() << "this system has none";
  std::uintptr_t address = 0;
  {
    const LargePages pages(3);
    pages[1][7] = std::byte{1};
    address = reinterpret_cast<std::uintptr_t>(pages[1].data());
    const std::string mapping = mapping_of(address);
    ASSERT_FALSE(mapping.empty());
    EXPECT_NE(mapping.find(" hg"), std::string::npos) << "the system was not asked:\n" << mapping;
  }
  EXPECT_EQ(mapping_of(address), "");
}

TEST(LargePages, ThatNoMemoryHoldsAreRefused) { EXPECT_THROW(LargePages(std::size_t{1} << 38), std::bad_alloc); }

}  // namespace
}  // namespace tessera
