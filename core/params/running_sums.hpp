#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/params/slots.hpp"

namespace tessera {

/// Sums of gradients over all sharding groups, made without a sum of sums. Each group adds its ranks' gradients, in
/// their order, onto the sum of the groups before it, and passes that on. So the order is that of all ranks, whatever
/// their number in a group. The last group sends the slices of a sum to their owners. Up to most_running_sums are on
/// their way at once, so that groups work side by side.
class RunningSums {
 public:
  RunningSums(Device& device, const ParamLayout& layout, Mesh& mesh);

  /// Adds the gradients of this rank's sharding group, `terms` by bucket, and passes the sum on. A later round
  /// begins with the sum of the rounds before, which the owners hold. Orders on the copies' stream. Collective over the
  /// ranks across.
  void add(const Reduction& reduction, const ParamGroup& group, std::span<const SumTerms> terms);
  /// Sends the sums that are under way to their owners. Collective likewise.
  void finish();
  /// Drops what is under way.
  void drop();

 private:
  /// A sum that the last sharding group has or will have, and that its owners do not have yet.
  struct UnderWay {
    const ParamGroup* group = nullptr;
    Pending sent;
  };
  /// Counts of the exchanges of one bucket's shard, by sharding group.
  struct Cuts {
    RangesByRank pieces;  ///< begins counted from the shard's
    std::vector<std::int64_t> sent, arrivals;
  };

  bool holds(const ParamGroup& group) const;
  void collect(const ParamGroup& group, std::span<const Tensor> sums);
  Pending pass_on(const ParamGroup& group, std::span<const Tensor> sent, std::span<const Tensor> received);
  void add_up(const Reduction& reduction, const ParamGroup& group, std::span<const SumTerms> terms,
              std::span<const Tensor> sums);
  void deliver_oldest();

  Device& device_;
  Mesh& mesh_;
  RankIn here_;  ///< this rank's sharding group
  IndexedBy<BucketId, Cuts> cuts_;
  std::vector<UnderWay> under_way_;  ///< by slot for running sums; a ring
  std::size_t oldest_ = 0, count_ = 0;
  std::vector<Exchange> exchanges_;  ///< kept, so that a step allocates nothing
};

}  // namespace tessera
