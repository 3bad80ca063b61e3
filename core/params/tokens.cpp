#include "core/params/tokens.hpp"

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
  if (sync_) quietly([this] { sync_->drop(); });
}

GradientSync& Token::held() const {
  if (!sync_) throw StateError("a token of a step was used after it had been moved from");
  return *sync_;
}

GradientSync& Token::spend() {
  GradientSync& sync = held();
  sync_ = nullptr;
  return sync;
}

Gradient Accumulating::slot(ParamId param) { return held().slot(param); }
void Accumulating::written(Stream& stream, ParamId param) { held().written(stream, param); }
Reduced Accumulating::reduce(Stream& stream) && {
  GradientSync& sync = spend();
  sync.reduce(stream);
  return Reduced(sync);
}

Forward::~Forward() {
  if (sync_) quietly([this] { sync_->end_pass(); });
}

Tensor Reduced::shard(BucketId bucket) const { return held().shard(bucket); }
int Reduced::buckets() const { return held().buckets(); }
Clipped Reduced::clipped(Stream& stream, const ClipResult* clip) && {
  held().invalidate(stream);  // mutation: staged_before_the_step.2
  return Clipped(spend(), clip);
}

Tensor Clipped::shard(BucketId bucket) const { return held().shard(bucket); }
Tensor Clipped::weight_shard(BucketId bucket) const { return held().claim(bucket); }
Updated Clipped::updated() && {
  spend().drop();
  return Updated(Updated::Weights::outdated);
}

}  // namespace tessera
