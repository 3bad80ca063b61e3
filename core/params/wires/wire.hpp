#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "core/params/planes.hpp"
#include "kernels/gemm/operand.hpp"

namespace tessera {

/// A stored array, as Weights shows it.
struct Plane {
  GroupId group;
  BucketId bucket;
  PlaneKind kind;
  Tensor values;
  std::span<const Entries> members;  ///< where each member's entries lie, by place in Bucket::members
};

/// One bucket as its wire sees it.
struct WireBucket {
  GroupId group;
  BucketId id;
  /// Where it lies whole, live as long as the wire: in one place for good, of which this rank's part is its slice; or,
  /// where ranks keep slices alone, in one of the slots of a pool.
  std::span<const Planes> places;
  Tensor staged;  ///< where its bf16 waits for the all-gather and lies until consume(); Way::source alone
  Tensor master;  ///< this rank's slice, fp32
  bool pooled() const { return places.size() > 1; }
};

/// What of a group's weights is gathered, and to which of its places.
struct Held {
  int place = 0;
  Sides sides = Sides::both;
};

/// How the buckets of one format travel and are rebuilt. A call works on all buckets of the groups that it names, in
/// one launch; a step makes them in the order in which they stand here. The all-reduce and the all-gather between them
/// are ParamSync's, its only caller. All are local; those that take a stream order on it.
class Wire {
 public:
  virtual ~Wire() = default;
  /// Amaxes of what this rank owns, for the ranks to agree on.
  virtual void measure(Stream& stream) = 0;
  /// The amaxes of one process group's buckets, u16 bits of bf16 numbers >= 0: after measure() this rank's, whose
  /// maximum over ranks stage() expects in their place. Nothing where ranks need not agree.
  virtual std::span<const Tensor> agreed(ProcessGroup processes) const = 0;
  /// Writes Q(bf16(master)) of this rank's slices, in wire form, where the all-gather expects it.
  virtual void stage(Stream& stream, std::span<const GroupId> groups) = 0;
  /// The arrays of a group that the all-gather completes; valid as long as the wire.
  virtual std::span<const Exchange> exchanges(GroupId group, const Held& held) const = 0;
  /// After the all-gather: makes what has not travelled from what has. The one place of post-processing.
  virtual void consume(Stream& stream, GroupId group, const Held& held) = 0;
  /// What products read of a parameter in one place, [out, in] (vectors: [n]; grouped: all members).
  virtual Operand operand(ParamId param, Side side, int place) const = 0;
};

/// What wires are made from.
struct WireContext {
  Device& device;
  const ParamRegistry& registry;
  const ParamLayout& layout;
  const Ranks& ranks;
};

/// The wire of buckets of one format, in that way; all of them pooled, or none.
std::unique_ptr<Wire> make_wire(const WireContext& context, Way way, std::span<const WireBucket> buckets);

/// Weights that travel as they are kept, in a plain type: nothing to agree on or to rebuild.
std::unique_ptr<Wire> plain_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Codes of formats whose columnwise copy follows from the rowwise one: each rank casts its slices, by amaxes that all
/// agree on where blocks have several owners; scales travel where they have one.
std::unique_ptr<Wire> cast_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Codes and scales of both copies, neither of which follows from the other: each rank quantizes its rows of blocks.
std::unique_ptr<Wire> tile_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Codes under full sharding, of which ranks keep slices of whole blocks: codes and scales travel at each gather, of
/// both copies or of one from which the other follows.
std::unique_ptr<Wire> kept_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Codes that every rank makes of the bf16 that travels.
std::unique_ptr<Wire> source_wire(const WireContext& context, std::span<const WireBucket> buckets);

}  // namespace tessera
