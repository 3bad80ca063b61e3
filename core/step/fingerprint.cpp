#include "core/step/fingerprint.hpp"

#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// By parameter, the number of its canonical dataset.
std::vector<int> dataset_of_params(const ParamRegistry& registry) {
  std::vector<int> dataset_of;
  int dataset = 0;
  for (const Dataset& one : registry.datasets()) dataset_of.insert(dataset_of.end(), one.params.size(), dataset++);
  return dataset_of;
}

}  // namespace

void add_digests(Stream& stream, std::uint64_t* sums, const StepPlan& plan,
                 const std::function<Tensor(BucketId)>& shard) {
  const std::vector<int> dataset_of = dataset_of_params(plan.registry);
  for (BucketId b : plan.layout.buckets().ids())
    for (const ShardRange& piece : plan.layout.shard_ranges(b, plan.ranks))
      digest(stream, sums + dataset_of[static_cast<std::size_t>(piece.param.value)],
             shard(b).flat(piece.shard.value, piece.real.value), static_cast<std::uint64_t>(piece.canonical.value));
}

DigestingSink::DigestingSink(const StepPlan& plan, std::uint64_t* sums, GradientSink& sink)
    : dataset_of_(dataset_of_params(plan.registry)),
      sums_(sums),
      sink_(sink),
      given_(plan.registry.size()),
      unwritten_(plan.schedule.contributions) {}

void DigestingSink::written(Stream& stream, ParamId param) {
  if (--unwritten_[param] == 0) {  // mutation: spot_checks_of_losses_alone
    const Gradient& whole = given_[param];
    for (std::int64_t e = 0; e < whole.members; ++e) {
      const Tensor member = whole.member(e).sum;
      digest(stream, sums_ + dataset_of_[static_cast<std::size_t>(param.value)], member.flat(0, member.elements()),
             static_cast<std::uint64_t>(e * member.elements()));
    }
  }
  sink_.written(stream, param);
}

}  // namespace tessera
