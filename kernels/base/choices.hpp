#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace tessera {

/// The algorithm that a library uses for each piece of work: state of a stream (Stream::library). Work and algorithm
/// are encoded in words of the library's own, valid in every process of this build on this kind of GPU. A dry stream
/// adds the work that it meets, without a choice. A choice that is set before the work is done first is used, if the
/// library accepts it.
struct LibraryChoices {
  using Words = std::vector<std::uint64_t>;
  std::map<Words, Words> of;
};

}  // namespace tessera
