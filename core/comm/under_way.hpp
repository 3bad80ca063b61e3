#pragma once
#include <array>
#include <bit>
#include <cstdint>

#include "kernels/base/error.hpp"

namespace tessera {

/// What a back end keeps of the collectives under way, which a Pending names by their number. Entries keep their
/// memory from one operation to the next, so that a steady state does not allocate.
template <class Entry> class UnderWay {
 public:
  static constexpr int most = 64;

  /// Takes the free entry of the lowest number. Throws Error{internal} if all are taken.
  int take(const char* back_end) {
    const int number = std::countr_one(taken_);
    require(number < most, back_end, "too many collectives under way");
    taken_ |= std::uint64_t{1} << number;
    return number;
  }
  void free(int number) { taken_ &= ~(std::uint64_t{1} << number); }

  Entry& operator[](int number) { return entries_[static_cast<std::size_t>(number)]; }
  /// All entries, by number: those that are free too.
  std::array<Entry, most>& all() { return entries_; }

 private:
  std::array<Entry, most> entries_;
  std::uint64_t taken_ = 0;
};

}  // namespace tessera
