#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "kernels/gemm/operand.hpp"

namespace tessera {

/// The stored arrays of one bucket's weights, whole on every rank: those that its format has.
struct Planes {
  Tensor values;  ///< [size], padding included; serves both sides

  Planes(Device& device, const Bucket& bucket);
  /// f(name, array) for each of them: the only list.
  template <class F> void visit(const F& f) const { f("rowwise", values); }
};

/// One of them, as Weights shows it.
struct Plane {
  GroupId group;
  BucketId bucket;
  const char* name;
  Tensor values;
};

/// One bucket as its wire sees it.
struct WireBucket {
  GroupId group;
  BucketId id;
  Planes planes;
  Tensor master;  ///< this rank's slice, fp32
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
  /// maximum over ranks stage() expects in their place. Empty where ranks need not agree.
  virtual Tensor agreed(ProcessGroup processes) const = 0;
  /// Writes Q(bf16(master)) of this rank's slices, in wire form, where the all-gather expects it.
  virtual void stage(Stream& stream, std::span<const GroupId> groups) = 0;
  /// The arrays of a group that the all-gather completes; valid as long as the wire.
  virtual std::span<const Exchange> exchanges(GroupId group) const = 0;
  /// After the all-gather: makes what has not travelled from what has. The one place of post-processing.
  virtual void consume(Stream& stream, GroupId group) = 0;
  /// What products read of a parameter, [out, in] (vectors: [n]; grouped: all members).
  virtual Operand operand(ParamId param, Side side) const = 0;
};

/// Weights that travel as they are kept, in a plain type, gathered in place: nothing to agree on or to rebuild.
std::unique_ptr<Wire> plain_wire(Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                                 const Ranks& ranks, std::span<const WireBucket> buckets);

}  // namespace tessera
