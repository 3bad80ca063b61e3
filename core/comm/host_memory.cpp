#include "core/comm/host_memory.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace tessera {
namespace {

/// A rank's memory as others open it. They find `token` at its begin: a file of the same number on another host has
/// another.
struct Exported {
  SharedPages::Name name;
  std::uint64_t token = 0;
};

std::optional<SharedPages> opened(const Exported& exported) {
  try {
    SharedPages pages(exported.name);
    if (std::memcmp(pages.data(), &exported.token, sizeof exported.token) == 0) return pages;
  } catch (const std::bad_alloc&) {
  }
  return std::nullopt;
}

}  // namespace

HostMemory::HostMemory(const RankIn& place, const SharedMemory& memory, const Gather& gather) {
  Exported mine{{::getpid(), memory.file, 0}, 0};
  bool found = memory.file >= 0 && ::getrandom(&mine.token, sizeof mine.token, 0) == sizeof mine.token;
  if (found) {
    mine.name.bytes = ::lseek(memory.file, 0, SEEK_END);
    std::memcpy(memory.bytes.data, &mine.token, sizeof mine.token);
  }
  const std::vector<std::byte> all = gather(std::as_bytes(std::span(&mine, 1)));
  for (int rank = 0; rank < place.size; ++rank) {
    Exported theirs;
    std::memcpy(&theirs, all.data() + static_cast<std::size_t>(rank) * sizeof theirs, sizeof theirs);
    if (rank == place.rank) {
      addresses_.push_back(static_cast<std::byte*>(memory.bytes.data));
    } else if (std::optional<SharedPages> pages = opened(theirs)) {
      addresses_.push_back(others_.emplace_back(std::move(*pages)).data());
    } else {
      found = false;
    }
  }
  const std::array answer{static_cast<std::byte>(found)};
  if (std::ranges::count(gather(answer), std::byte{}) > 0) addresses_.clear();
}

}  // namespace tessera
