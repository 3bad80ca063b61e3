#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "core/params/sync_rules.hpp"
#include "kernels/gemm/operand.hpp"

namespace tessera {

/// A set of a weight's copies.
enum class Sides : std::uint8_t { none = 0, rowwise = 1, columnwise = 2, both = 3 };
constexpr Sides operator|(Sides a, Sides b) {
  return static_cast<Sides>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
constexpr bool contains(Sides all, Sides part) { return (all | part) == all; }
constexpr const char* name_of(Sides sides) {
  constexpr const char* names[] = {"none", "rowwise", "columnwise", "both"};
  return names[static_cast<int>(sides)];
}

/// What travels of a format's weights: core/config/travel.hpp decides it.
inline Travel travel_of(const WeightFormat& format, const WeightRules& rules) {
  return travel_of(format.codes, format.plain, rules);
}
/// Bytes of an element in an all-gather. Compact scales, which travel only with some cuts and owners, are not counted.
double wire_bytes(const WeightFormat& format, Travel travel);
/// Bytes of an element in one all-gather under full sharding, compact scales included; of one copy, if the two copies
/// travel apart.
double kept_bytes(const WeightFormat& format, Travel travel);
/// Copies that must have been gathered for an access to `side`. Values: none in particular, since they travel with
/// every gather of their group. Codes whose copies travel apart: that side. Other codes: rowwise, the only payload.
Sides payload_of(const WeightFormat& format, Travel travel, Side side);
/// Texts for plans and explanations: what is held of a weight, what travels, and why that is enough.
std::string held_as(const WeightFormat& format, Travel travel);
std::string travels_as(const WeightFormat& format, Travel travel);
std::string reason_of(const WeightFormat& format, Travel travel);

/// Under full sharding: slots of the weight pool of one process group, each for one gathered group (double buffering).
inline constexpr int weight_slots = 2;

/// The stored arrays of weights; a format has some of them. block_scales is not stored: it travels, one scale a block,
/// and the arrays of scales are made from it.
enum class PlaneKind : std::uint8_t {
  rowwise,
  columnwise,
  rowwise_scales,
  columnwise_scales,
  amax,
  block_scales,
  count
};
inline constexpr auto plane_kinds = static_cast<std::size_t>(PlaneKind::count);
constexpr const char* name_of(PlaneKind kind) {
  constexpr const char* names[] = {"rowwise",           "columnwise", "rowwise_scales",
                                   "columnwise_scales", "amax",       "block_scales"};
  return names[static_cast<int>(kind)];
}

/// Range of one member's entries in an array.
struct Entries {
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
};

/// A one-dimensional array of one bucket's weights, and the entries of each member, by index in Bucket::members.
struct StoredArray {
  Tensor values;
  std::vector<Entries> members;

  explicit operator bool() const { return static_cast<bool>(values); }
  /// The entries of `count` members from `first` on, gaps between them included.
  Tensor of(std::size_t first, std::size_t count) const {
    return values.flat(members[first].first, members[first + count - 1].end() - members[first].first);
  }
};

/// Returns memory for an array of weights, or an empty tensor: then the array is left out.
using ArrayMemory = std::function<Tensor(PlaneKind kind, DType type, const Shape& shape)>;

/// The stored arrays of one bucket's weights, whole on every rank. Data lie at the bucket's offsets, gaps and padding
/// included; scales and amaxes are packed member after member.
class Planes {
 public:
  /// Arrays in the memory that `places` gives.
  Planes(const ParamRegistry& registry, const Bucket& bucket, Travel travel, const ArrayMemory& places);
  /// Arrays in memory of their own. Codes begin as zeros, which stay in gaps. Allocates. Local.
  static Planes allocated(Device& device, const ParamRegistry& registry, const Bucket& bucket, Travel travel);

  const StoredArray& operator[](PlaneKind kind) const { return arrays_[static_cast<std::size_t>(kind)]; }
  /// Calls f(kind, array) for each stored array: their only list.
  template <class F> void visit(const F& f) const {
    for (std::size_t i = 0; i < plane_kinds; ++i)
      if (arrays_[i] && static_cast<PlaneKind>(i) != PlaneKind::block_scales) f(static_cast<PlaneKind>(i), arrays_[i]);
  }

 private:
  std::array<StoredArray, plane_kinds> arrays_;
};

/// The array of one scale a block in which scales of square formats travel; not a stored array. Allocates.
StoredArray block_scales_of(Device& device, const ParamRegistry& registry, const Bucket& bucket);

/// Whether a bucket's array is valid once these sides have been gathered.
bool holds(const WeightFormat& format, Travel travel, Sides sides, PlaneKind kind);

/// The array that holds the data of a side, and the one that holds its scales.
PlaneKind data_of(FormatId format, Side side);
constexpr PlaneKind scales_of(Side side) {
  return side == Side::rowwise ? PlaneKind::rowwise_scales : PlaneKind::columnwise_scales;
}

/// Operand of one side of a weight held as codes, [out, in] or `members` of them at `stride` elements. `data`, `scales`
/// and `amax` point to the first member's.
Operand coded_operand(FormatId format, const ParamSpec& spec, Side side, std::int64_t stride, void* data, void* scales,
                      void* amax);

}  // namespace tessera
