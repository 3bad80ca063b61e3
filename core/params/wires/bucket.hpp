#pragma once
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "core/params/planes.hpp"
#include "kernels/gemm/operand.hpp"
#include "kernels/quantize/table.hpp"

/// A bucket as its wire knows it, and the entries of quantization tables that are made of it.
namespace tessera {

struct WireBucket {
  GroupId group;
  BucketId id;
  /// Places of the whole weights, which must outlive the wire. One permanent place, of which this rank's part is its
  /// shard; or, under full sharding, the slots of a pool.
  std::span<const Planes> places;
  Tensor staged;  ///< bf16 staged for the all-gather, valid until post_process(); Travel::bf16 alone
  Tensor master;  ///< this rank's slice, fp32
  /// Whether this rank's shard has memory of its own.
  bool shard_apart() const { return places.size() > 1; }
};

/// What the parts of a wire are made from.
struct WireContext {
  Device& device;
  const ParamRegistry& registry;
  const ParamLayout& layout;
  const Ranks& ranks;

  const Bucket& bucket(const WireBucket& own) const { return layout.buckets()[own.id]; }
  /// The slices in this rank's shard of a bucket, by sharding group; empty if there is one sharding group.
  RangesByRank pieces(const Bucket& bucket) const {
    return ranks.sharding.size > 1 ? bucket.pieces[bucket.shard_number(ranks)] : RangesByRank();
  }
};

/// The operand of one side of a parameter, in one place of its bucket.
Operand operand_in(const WireContext& context, const Bucket& bucket, const Placement& p, Travel travel,
                   const Planes& planes, Side side);

/// Table entries without source values, one for each parameter of a bucket held as codes, in the order of its members.
/// Scales that travel lie in `block_scales`. Local.
std::vector<QuantizedMatrix> matrices_of(const WireContext& context, const WireBucket& own, const Planes& planes,
                                         const StoredArray& block_scales = {});
/// The same with this rank's part of the masters as source values. Local.
std::vector<QuantizedMatrix> owned_matrices_of(const WireContext& context, const WireBucket& own, const Planes& planes,
                                               const StoredArray& block_scales = {});
/// The same with the whole bf16 that is staged for the all-gather as source values. Local.
std::vector<QuantizedMatrix> staged_matrices_of(const WireContext& context, const WireBucket& own);

}  // namespace tessera
