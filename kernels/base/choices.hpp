#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace tessera {

/// The algorithm that a library uses for each piece of work (state of a stream, Stream::library). Both are words of the
/// library's own, which mean the same to every process of this build on this kind of GPU. A dry stream notes the work
/// that it meets, without a choice. A choice that stands here before the work is first done is used, if the library
/// accepts it.
struct LibraryChoices {
  using Words = std::vector<std::uint64_t>;
  std::map<Words, Words> of;
};

}  // namespace tessera
