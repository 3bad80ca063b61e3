#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace tessera {

/// A stream's library state (Stream::library): which of its algorithms a library uses for each piece of work, both in
/// words of the library's own that mean the same to every process of this build on this kind of GPU. A dry stream notes
/// the work that it meets, with no choice; what stands here before the work is first done is used, where the library
/// accepts it.
struct LibraryChoices {
  using Words = std::vector<std::uint64_t>;
  std::map<Words, Words> of;
};

}  // namespace tessera
