#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "core/params/wires/bucket.hpp"
#include "core/params/wires/exchanges.hpp"

namespace tessera {

/// What a group's all-gather brings, from which the other stored arrays of its codes are made.
enum class DerivedFrom : std::uint8_t { codes, bf16 };

/// The stored arrays that do not travel: made behind a group's all-gather, with a table for each place and group.
class DerivedArrays {
 public:
  /// Table entries of the codes of a bucket, by its index, in one place.
  using Matrices = std::function<std::vector<QuantizedMatrix>(std::size_t place, std::size_t bucket)>;

  /// Allocates. Local.
  DerivedArrays(const WireContext& context, FormatId format, std::span<const WireBucket> buckets, DerivedFrom from,
                const Matrices& matrices);

  /// Orders on `stream`. Local.
  void build(Stream& stream, GroupId group, const Gathered& held) const;

 private:
  DerivedFrom from_;
  std::vector<IndexedBy<GroupId, std::optional<QuantizeTable>>> tables_;  ///< by place
};

}  // namespace tessera
