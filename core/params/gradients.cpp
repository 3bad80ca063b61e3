#include "core/params/gradients.hpp"

#include "core/params/param_sync.hpp"

namespace tessera {

int Gradients::buckets() const { return sync_.buckets_.size(); }
const Tensor& Gradients::storage(BucketId bucket) const { return sync_.bucket(bucket).gradients; }
const Tensor& Gradients::shard(BucketId bucket) const { return sync_.bucket(bucket).gradient_shard; }
GradientState Gradients::state(GroupId group) const { return sync_.groups_[group].gradients.state(); }
std::int64_t Gradients::overlapped() const { return sync_.overlapped_.reductions; }

Gradient Gradients::slot(ParamId param) { return sync_.slot(param); }
void Gradients::written(Stream& stream, ParamId param) { sync_.written(stream, param); }
void Gradients::reduce(Stream& stream) { sync_.reduce(stream); }
void Gradients::drop() { sync_.drop(); }
void Gradients::release() { sync_.release(); }
void Gradients::outdate_weights(Stream& stream) { sync_.invalidate(stream); }
Tensor Gradients::claim_weights(BucketId bucket) const { return sync_.bucket(bucket).wire->claim(bucket); }

}  // namespace tessera
