#include "core/params/tokens.hpp"

#include "core/params/gradients.hpp"
#include "core/params/param_sync.hpp"
#include "core/params/state.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

namespace {

/// Runs the work of a destructor. Where a GPU has failed it fails too, and the first error says so: it is under way, or
/// the next call reports it again.
template <class Work>
void quietly(const Work& work) noexcept {
  Problems known;
  attempt(known, work);
}

}  // namespace

Token::~Token() {
  if (gradients_) quietly([this] { gradients_->drop(); });
}

Gradients& Token::held() const {
  if (!gradients_) throw StateError("a token of a step was used after it had been moved from");
  return *gradients_;
}

Gradients& Token::spend() {
  Gradients& gradients = held();
  gradients_ = nullptr;
  return gradients;
}

Gradient Accumulating::slot(ParamId param) { return held().slot(param); }
void Accumulating::written(Stream& stream, ParamId param) { held().written(stream, param); }
Reduced Accumulating::reduce(Stream& stream) && {
  Gradients& gradients = spend();
  gradients.reduce(stream);
  return Reduced(gradients);
}

Forward::~Forward() {
  if (sync_) quietly([this] { sync_->end_pass(); });
}

Tensor Reduced::shard(BucketId bucket) const { return held().shard(bucket); }
int Reduced::buckets() const { return held().buckets(); }
Clipped Reduced::clipped(Stream& stream, const ClipResult* clip) && {
  held().outdate_weights(stream);
  return Clipped(spend(), clip);
}

Tensor Clipped::shard(BucketId bucket) const { return held().shard(bucket); }
Tensor Clipped::claim_weights(BucketId bucket) const { return held().claim_weights(bucket); }
Updated Clipped::updated() && {
  spend().release();
  return Updated(Updated::Weights::outdated);
}

}  // namespace tessera
