#pragma once
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/quantize/descriptor.hpp"

/// Memory ranges that the matrices of a table read and write. Finds overlaps, for which a table is refused.
namespace tessera::quantizer {

enum class Use : std::uint8_t { reads, writes };

class Claims {
 public:
  /// Claims bytes [begin, begin + bytes) for the current matrix, which close() ends.
  void add(Use use, const void* begin, std::int64_t bytes) {
    const auto* first = static_cast<const std::byte*>(begin);
    if (bytes > 0) claims_.push_back({first, first + bytes, use, static_cast<int>(owned_.size())});
  }
  /// Ends the current matrix, of which positions [begin, end) are owned.
  void close(std::int64_t begin, std::int64_t end) { owned_.push_back({begin, end}); }

  /// Numbers of two matrices (or twice of one) that overlap, the later one first; empty if none do. No other matrix may
  /// use memory that a matrix writes, unless both write the same array as parts of one matrix and own disjoint
  /// positions.
  std::optional<std::pair<int, int>> conflict() {
    std::sort(claims_.begin(), claims_.end(), [&](const Claim& a, const Claim& b) {
      return std::tuple(a.begin, a.end, owned_[at(a)].begin) < std::tuple(b.begin, b.end, owned_[at(b)].begin);
    });
    const Claim *read = nullptr, *written = nullptr;  // the claims that reach furthest
    for (const Claim& c : claims_) {
      for (const Claim* earlier : {c.use == Use::writes ? read : nullptr, written})
        if (earlier && c.begin < earlier->end && !parts_of_one(*earlier, c))
          return std::pair(std::max(c.matrix, earlier->matrix), std::min(c.matrix, earlier->matrix));
      const Claim*& furthest = c.use == Use::writes ? written : read;
      if (!furthest || c.end >= furthest->end) furthest = &c;
    }
    return std::nullopt;
  }

 private:
  struct Claim {
    const std::byte *begin, *end;
    Use use;
    int matrix;
  };
  struct Owned {
    std::int64_t begin, end;
  };
  static std::size_t at(const Claim& c) { return static_cast<std::size_t>(c.matrix); }
  bool parts_of_one(const Claim& a, const Claim& b) const {
    return a.use == b.use && a.matrix != b.matrix && a.begin == b.begin && a.end == b.end &&
           owned_[at(a)].end <= owned_[at(b)].begin;
  }

  std::vector<Claim> claims_;
  std::vector<Owned> owned_;
};

}  // namespace tessera::quantizer
