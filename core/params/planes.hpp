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

/// How the weights of one format are held, and what of them travels.
enum class Way : std::uint8_t {
  values,  ///< held in the plain type, which travels
  codes,   ///< held as codes, which travel: quantized by the owners
  source,  ///< held as codes; their bf16 travels, and every rank quantizes it
};

/// A set of copies.
enum class Sides : std::uint8_t { none = 0, rowwise = 1, columnwise = 2, both = 3 };
constexpr Sides operator|(Sides a, Sides b) {
  return static_cast<Sides>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
constexpr bool contains(Sides all, Sides part) { return (all | part) == all; }
constexpr const char* name_of(Sides sides) {
  constexpr const char* names[] = {"none", "rowwise", "columnwise", "both"};
  return names[static_cast<int>(sides)];
}

/// How weights of a format are held and travel, decided here alone: `wire: auto` takes the fewer bits an element; under
/// full sharding weights travel as they are kept.
Way way_of(const WeightFormat& format, const WeightRules& rules);
/// Bytes of an element on the wire; compact scales, which some cuts and owners add, not counted.
double wire_bytes(const WeightFormat& format, Way way);
/// Bytes of an element in one all-gather under full sharding, compact scales included; where the copies travel apart,
/// bytes of one.
double kept_bytes(const WeightFormat& format, Way way);
/// Copies that must have been gathered for an access to `side`: of values none in particular, which travel with every
/// gather of their group; of codes whose copies travel apart that side, of others the one payload (rowwise).
Sides payload_of(const WeightFormat& format, Way way, Side side);
/// What is held of a weight, what travels, and why that is enough: for plans and explanations.
std::string held_as(const WeightFormat& format, Way way);
std::string travels_as(const WeightFormat& format, Way way);
std::string reason_of(const WeightFormat& format, Way way);

/// The stored arrays of weights; most formats have some of them.
/// block_scales is none of them: it travels, one scale a block, and arrays of scales are made from it.
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

/// Entries of one member in an array.
struct Entries {
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
};

/// An array of one bucket's weights, of one dimension, and each member's entries in it, by place in Bucket::members.
struct StoredArray {
  Tensor values;
  std::vector<Entries> members;

  explicit operator bool() const { return static_cast<bool>(values); }
  /// The entries of `count` members from `first` on, and of what lies between them.
  Tensor of(std::size_t first, std::size_t count) const {
    return values.flat(members[first].first, members[first + count - 1].end() - members[first].first);
  }
};

/// Gives an array of weights its memory, or none: then it is left out.
using ArrayPlaces = std::function<Tensor(PlaneKind kind, DType type, const Shape& shape)>;

/// The stored arrays of one bucket's weights, whole on every rank: those that its format has. Data stand at the
/// bucket's offsets, gaps and padding included; of scales and amaxes a member's lie right behind the one's before.
class Planes {
 public:
  /// In the memory that `places` gives.
  Planes(const ParamRegistry& registry, const Bucket& bucket, Way way, const ArrayPlaces& places);
  /// In memory of their own, for good. Allocates; codes begin as zeros, and stay zeros in gaps.
  static Planes allocated(Device& device, const ParamRegistry& registry, const Bucket& bucket, Way way);

  const StoredArray& operator[](PlaneKind kind) const { return arrays_[static_cast<std::size_t>(kind)]; }
  /// f(kind, array) for each stored one: the only list.
  template <class F> void visit(const F& f) const {
    for (std::size_t i = 0; i < plane_kinds; ++i)
      if (arrays_[i] && static_cast<PlaneKind>(i) != PlaneKind::block_scales) f(static_cast<PlaneKind>(i), arrays_[i]);
  }

 private:
  std::array<StoredArray, plane_kinds> arrays_;
};

/// The array of one scale a block, for square formats, whose scales travel so. Allocates; not a stored array.
StoredArray block_scales_of(Device& device, const ParamRegistry& registry, const Bucket& bucket);

/// Whether an array of a bucket is there once these sides have been gathered.
bool holds(const WeightFormat& format, Way way, Sides sides, PlaneKind kind);

/// Which array holds the data of a side, and which its scales.
PlaneKind data_of(FormatId format, Side side);
constexpr PlaneKind scales_of(Side side) {
  return side == Side::rowwise ? PlaneKind::rowwise_scales : PlaneKind::columnwise_scales;
}

/// One side of a weight that is held as codes, [out, in] or `members` of them at `stride`, from where its data, scales
/// and amaxes begin.
Operand coded_operand(FormatId format, const ParamSpec& spec, Side side, std::int64_t stride, void* data, void* scales,
                      void* amax);

}  // namespace tessera
