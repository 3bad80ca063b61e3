#include "core/params/tokens.hpp"

#include "core/params/gradients.hpp"
#include "core/params/param_sync.hpp"
#include "core/params/state.hpp"

namespace tessera {

Token::~Token() {
  if (gradients_) gradients_->drop();
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
  if (sync_) sync_->end_passes();
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
