#include "core/step/attempt.hpp"

#include "kernels/digest/digest.hpp"

namespace tessera {

void add_digests(Stream& stream, const Tensor& sums, const StepPlan& plan, const Reduced& gradients) {
  std::vector<int> dataset_of;
  int dataset = 0;
  for (const Dataset& one : plan.registry.datasets()) dataset_of.insert(dataset_of.end(), one.params.size(), dataset++);
  for (BucketId b : plan.layout.buckets().ids())
    for (const Piece& piece : plan.layout.pieces(b, plan.ranks))
      digest(stream, sums.as<std::uint64_t>() + dataset_of[static_cast<std::size_t>(piece.param.value)],
             gradients.shard(b).flat(piece.shard.value, piece.real.value),
             static_cast<std::uint64_t>(piece.canonical.value));
}

}  // namespace tessera
