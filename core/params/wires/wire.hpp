#pragma once
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "core/params/wires/codes.hpp"
#include "core/params/wires/derived.hpp"
#include "core/params/wires/exchanges.hpp"
#include "core/params/wires/rounded.hpp"

namespace tessera {

/// A stored array of weights, as ParamSync shows it.
struct Plane {
  GroupId group;
  BucketId bucket;
  PlaneKind kind;
  Tensor values;
  std::span<const Entries> members;  ///< entries of each member, by index in Bucket::members
};

/// How the buckets of one format are sent and rebuilt. Its shards are rounded values or codes; what does not travel is
/// derived. A call works on all buckets of the groups that it names, in one launch. A step calls the functions in the
/// order below. ParamSync, the only caller, makes the all-reduce and the all-gather between them. Functions with a
/// stream order on it. All Local.
class Wire {
 public:
  /// The buckets of one format, sent as `travel` says. Either all have shards apart, whose codes travel, or none.
  /// Throws Error{internal} for buckets that the format does not take. Allocates.
  Wire(const WireContext& context, Travel travel, std::span<const WireBucket> buckets);
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// Computes the amaxes of the elements that this rank owns.
  void measure_amaxes(Stream& stream) const {
    if (codes_) codes_->measure_amaxes(stream);
  }
  /// The amaxes of one process group's buckets: u16 bits of bf16 numbers >= 0. measure_amaxes() writes this rank's;
  /// stage() expects their maxima over ranks (all-reduce) in the same place. Empty if ranks need not agree.
  std::span<const Tensor> amaxes(ProcessGroup processes) const {
    return codes_ ? codes_->amaxes(processes) : std::span<const Tensor>();
  }
  /// Claims this rank's slice of bf16 weights for an update of the masters, which writes it: stage() leaves it out
  /// until release_claims(). Empty, and nothing claimed, where the weights are not bf16.
  Tensor claim(BucketId bucket) { return rounded_ ? rounded_->claim(bucket) : Tensor{}; }
  void release_claims() {
    if (rounded_) rounded_->release_claims();
  }
  /// Writes this rank's slices of Q(bf16(master)), in the form that travels, into the buffers of the first all-gather.
  void stage(Stream& stream, std::span<const GroupId> groups) {
    if (rounded_) return rounded_->stage(stream, groups);
    codes_->stage(stream, groups);
  }
  /// Buffers of a group's all-gather inside a sharding group; valid as long as the wire. ParamSync opens them once.
  std::span<Exchange> exchanges(GroupId group, const Gathered& held) { return exchanges_.of(group, held); }
  /// Buffers of the all-gather across sharding groups, which completes this rank's shard.
  std::span<Exchange> exchanges_across(GroupId group) { return exchanges_.across(group); }
  /// Post-processing of the all-gather: derives the stored arrays that have not travelled from those that have.
  void post_process(Stream& stream, GroupId group, const Gathered& held) const {
    if (derived_) derived_->build(stream, group, held);
  }
  /// The operand that products read: a parameter in one place, [out, in] (vectors: [n]; grouped: all members).
  Operand operand(ParamId param, Side side, int place) const {
    return operands_[static_cast<std::size_t>(place)][param][static_cast<std::size_t>(side)];
  }

 private:
  Exchanges exchanges_;
  std::vector<IndexedBy<ParamId, std::array<Operand, 2>>> operands_;  ///< by place
  std::optional<RoundedShards> rounded_;                              ///< its shards are plain values; else codes_
  std::optional<CodeShards> codes_;
  std::optional<DerivedArrays> derived_;  ///< empty: all arrays travel
};

}  // namespace tessera
