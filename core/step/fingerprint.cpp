#include "core/step/fingerprint.hpp"

#include "kernels/digest/digest.hpp"

namespace tessera {

void add_digests(Stream& stream, std::uint64_t* sums, const StepPlan& plan,
                 const std::function<Tensor(BucketId)>& shard) {
  std::vector<int> dataset_of;
  int dataset = 0;
  for (const Dataset& one : plan.registry.datasets()) dataset_of.insert(dataset_of.end(), one.params.size(), dataset++);
  for (BucketId b : plan.layout.buckets().ids())
    for (const Piece& piece : plan.layout.pieces(b, plan.ranks))
      digest(stream, sums + dataset_of[static_cast<std::size_t>(piece.param.value)],
             shard(b).flat(piece.shard.value, piece.real.value), static_cast<std::uint64_t>(piece.canonical.value));
}

}  // namespace tessera
