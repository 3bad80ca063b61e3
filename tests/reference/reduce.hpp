#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reduce/reduce.hpp"

namespace tessera::reference {

/// ((in[0] + in[1]) + in[2]) + ... of parts of n elements each.
std::vector<float> sum_in_order(std::span<const float> in, std::int64_t parts);
std::vector<double> sum_in_order(std::span<const double> in, std::int64_t parts);

/// ((out + in[0]) + in[1]) + ... of parts of n elements each.
std::vector<float> add_in_order(std::span<const float> out, std::span<const float> in, std::int64_t parts);
std::vector<double> add_in_order(std::span<const double> out, std::span<const double> in, std::int64_t parts);

/// A non-negative integer of 704 bits, added bit by bit: slow, and hard to get wrong.
class Natural {
 public:
  /// Adds value 2^shift.
  void add(std::uint64_t value, int shift);
  void add(const Natural& other);
  bool operator<(const Natural& other) const;
  bool operator==(const Natural& other) const = default;

 private:
  std::vector<std::uint8_t> bits_ = std::vector<std::uint8_t>(704, 0);  // lowest first
};

/// sqrt(sum x^2) of finite elements, rounded once to fp32. Found by comparing exact squares.
float norm(std::span<const float> x);

/// The result of clip_from_squares() for these elements.
ClipResult clip(std::span<const float> x, float clip, float limit);

}  // namespace tessera::reference
