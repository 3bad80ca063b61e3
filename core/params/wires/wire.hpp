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

/// A stored array of weights, as ParamSync shows it.
struct Plane {
  GroupId group;
  BucketId bucket;
  PlaneKind kind;
  Tensor values;
  std::span<const Entries> members;  ///< entries of each member, by index in Bucket::members
};

/// One bucket, as its wire knows it.
struct WireBucket {
  GroupId group;
  BucketId id;
  /// Places of the whole weights, which must outlive the wire: one permanent place, of which this rank's part is its
  /// slice; or, under full sharding, the slots of a pool.
  std::span<const Planes> places;
  Tensor staged;  ///< bf16 staged for the all-gather, valid until consume(); Travel::bf16 alone
  Tensor master;  ///< this rank's slice, fp32
  /// Whether this rank's shard has memory of its own.
  bool shard_apart() const { return places.size() > 1; }
};

/// Which copies of a group's weights are gathered, and into which place.
struct Held {
  int place = 0;
  Sides sides = Sides::both;
};

/// How the buckets of one format are sent and rebuilt. A call works on all buckets of the groups that it names, in one
/// launch. A step calls the functions in the order below. ParamSync, the only caller, makes the all-reduce and the
/// all-gather between them. Functions with a stream order on it. All Local.
class Wire {
 public:
  virtual ~Wire() = default;
  /// Computes the amaxes of the elements that this rank owns.
  virtual void measure(Stream& stream) = 0;
  /// The amaxes of one process group's buckets: u16 bits of bf16 numbers >= 0. measure() writes this rank's; stage()
  /// expects their maxima over ranks (all-reduce) in the same place. Empty if ranks need not agree.
  virtual std::span<const Tensor> agreed(ProcessGroup processes) const = 0;
  /// Claims this rank's slice of bf16 weights for an update of the masters, which writes it: stage() leaves it out
  /// until release_claims(). Empty, and nothing claimed, where what travels is not bf16.
  virtual Tensor claim(BucketId) { return {}; }
  virtual void release_claims() {}
  /// Writes this rank's slices of Q(bf16(master)), in the form that travels, into the all-gather's buffers.
  virtual void stage(Stream& stream, std::span<const GroupId> groups) = 0;
  /// Buffers of a group's all-gather; valid as long as the wire. ParamSync opens them once.
  virtual std::span<Exchange> exchanges(GroupId group, const Held& held) = 0;
  /// Post-processing of the all-gather: derives the stored arrays that have not travelled from those that have.
  virtual void consume(Stream& stream, GroupId group, const Held& held) = 0;
  /// The operand that products read: a parameter in one place, [out, in] (vectors: [n]; grouped: all members).
  virtual Operand operand(ParamId param, Side side, int place) const = 0;
};

/// Arguments of all wires' constructors.
struct WireContext {
  Device& device;
  const ParamRegistry& registry;
  const ParamLayout& layout;
  const Ranks& ranks;
};

/// Makes the wire of the buckets of one format, sent as `travel` says. Either all buckets have shards apart or none.
std::unique_ptr<Wire> make_wire(const WireContext& context, Travel travel, std::span<const WireBucket> buckets);

/// Wire of weights in a plain type, which travel as they are held: nothing to agree on or to rebuild.
std::unique_ptr<Wire> plain_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Wire of formats whose columnwise copy can be derived from the rowwise one: each rank quantizes its slices, and
/// rowwise codes travel. If a block may have several owners, ranks agree on amaxes by an all-reduce; if it has one, the
/// scales travel.
std::unique_ptr<Wire> cast_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Wire of formats neither of whose copies can be derived from the other: each rank quantizes its rows of blocks, and
/// codes and scales of both copies travel.
std::unique_ptr<Wire> tile_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Wire of codes under full sharding: ranks keep slices of whole blocks, and codes and scales travel at each visit, of
/// both copies or of one from which the other is derived.
std::unique_ptr<Wire> kept_wire(const WireContext& context, std::span<const WireBucket> buckets);
/// Wire of codes that every rank quantizes itself from bf16, which travels.
std::unique_ptr<Wire> source_wire(const WireContext& context, std::span<const WireBucket> buckets);

}  // namespace tessera
