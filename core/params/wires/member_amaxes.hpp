#pragma once
#include <optional>
#include <span>
#include <vector>

#include "core/params/placed_table.hpp"
#include "core/params/wires/bucket.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {

/// Amaxes of members, bucket by bucket: this rank's own, those agreed on, and the copies that products read.
class MemberAmaxes {
 public:
  /// `buckets` are those of dense parameters, then those of experts. Allocates. Local.
  MemberAmaxes(const WireContext& context, std::span<const WireBucket> buckets) {
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = context.bucket(own);
      begins_.push_back(end_);
      end_ += std::ssize(bucket.members);
      if (bucket.key.processes == ProcessGroup::dense) dense_ = end_;
    }
    mine_ = context.device.allocate(Category::staging, DType::f32, {end_});
    agreed_ = context.device.allocate(Category::staging, DType::bf16, {end_});
    std::vector<ConvertTable::Pair> pairs{{mine_, agreed_}};
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const Tensor& read = buckets[i].places.front()[PlaneKind::amax].values;
      pairs.push_back({read, agreed_.flat(begins_[i], read.elements())});
    }
    table_ = placed(context.device, ConvertTable(pairs));
  }

  Tensor mine(std::size_t bucket, std::int64_t members) const { return mine_.flat(begins_[bucket], members); }
  void restart(Stream& stream) const { clear(stream, mine_); }
  /// Writes this rank's amaxes as bf16 for the agreement; exact, since they are amaxes of bf16 values.
  void offer(Stream& stream) const { convert(stream, agreed_, mine_); }
  void accept(Stream& stream) const { convert(stream, *table_, 0, table_->pairs()); }
  /// The part of a process group, as u16 bits for a maximum over ranks.
  Tensor bits(ProcessGroup processes) const {
    const Tensor bits{agreed_.data, DType::u16, agreed_.shape};
    return processes == ProcessGroup::dense ? bits.flat(0, dense_) : bits.flat(dense_, end_ - dense_);
  }

 private:
  std::vector<std::int64_t> begins_;
  std::int64_t dense_ = 0, end_ = 0;
  Tensor mine_, agreed_;
  std::optional<ConvertTable> table_;
};

}  // namespace tessera
