// LargePages: blocks are aligned and disjoint, and memory is returned to the system.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
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

/// The system's description of the mapping of an address; empty if there is none.
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

bool is_asked_for(const std::string& mapping) { return mapping.find(" hg") != std::string::npos; }

/// Whether the system records requests for large pages: some kernels have none, and qemu drops requests.
bool requests_are_seen() {
  constexpr std::size_t bytes = 4 << 20;
  void* const own = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return false;
  const bool seen =
      madvise(own, bytes, MADV_HUGEPAGE) == 0 && is_asked_for(mapping_of(reinterpret_cast<std::uintptr_t>(own)));
  munmap(own, bytes);
  return seen;
}

TEST(LargePages, AreAskedForAndGivenBack) {
  const bool seen = requests_are_seen();
  std::uintptr_t address = 0;
  {
    const LargePages pages(3);
    pages[1][7] = std::byte{1};
    address = reinterpret_cast<std::uintptr_t>(pages[1].data());
    const std::string mapping = mapping_of(address);
    ASSERT_FALSE(mapping.empty());
    EXPECT_TRUE(!seen || is_asked_for(mapping)) << "the system was not asked:\n" << mapping;
  }
  EXPECT_EQ(mapping_of(address), "");
  if (!seen) GTEST_SKIP() << "this system shows no requests for large pages";
}

TEST(LargePages, ThatNoMemoryHoldsAreRefused) { EXPECT_THROW(LargePages(std::size_t{1} << 38), std::bad_alloc); }

}  // namespace
}  // namespace tessera
