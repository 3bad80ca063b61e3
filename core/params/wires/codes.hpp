#pragma once
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "core/params/cast.hpp"
#include "core/params/wires/derived.hpp"
#include "core/params/wires/member_amaxes.hpp"

namespace tessera {

/// Shards of weights that travel as codes: each rank quantizes the elements that it owns, of all groups in one launch.
/// Blocks of one owner are quantized by it, and their scales travel. Blocks that may have several are cast by amaxes on
/// which ranks agree.
class CodeShards {
 public:
  /// Adds the buckets' all-gathers to `exchanges`: of one copy, if the other is derived from it, else of both.
  /// Allocates. Local.
  CodeShards(const WireContext& context, FormatId format, std::span<const WireBucket> buckets, Exchanges& exchanges);

  void measure_amaxes(Stream& stream) const;
  std::span<const Tensor> amaxes(ProcessGroup processes) const {
    return agreed_[static_cast<std::size_t>(processes)];
  }
  /// Quantizes all groups at once, which `groups` must name. Throws Error{internal} otherwise.
  void stage(Stream& stream, std::span<const GroupId> groups) const;

  /// The arrays that are derived from what travels; nothing if both copies travel.
  std::optional<DerivedArrays> derived(const WireContext& context) const;

 private:
  bool both_travel() const { return traits_of(format_).columnwise == formats::Columnwise::requantized; }
  void in_slots(const WireContext& context, Exchanges& exchanges);
  void apart(const WireContext& context, Exchanges& exchanges);
  void cast(const WireContext& context, Exchanges& exchanges);
  std::vector<QuantizedMatrix> keep(const WireContext& context, std::size_t bucket, Exchanges& exchanges) const;
  std::vector<ShardedWeight> shards(const WireContext& context) const;
  void agree(const WireContext& context);

  FormatId format_;
  std::vector<WireBucket> buckets_;        ///< dense parameters before experts
  std::vector<StoredArray> block_scales_;  ///< of cast buckets; empty if all ranks compute the scales themselves
  std::optional<MemberAmaxes> members_;    ///< of blocks of one owner, in members of several
  std::optional<QuantizeTable> owned_;     ///< blocks of one owner
  std::optional<ShardedWeights> cast_;     ///< blocks that may have several
  std::array<std::vector<Tensor>, 2> agreed_;
};

}  // namespace tessera
