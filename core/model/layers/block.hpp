#pragma once
#include "core/model/layers/attention.hpp"
#include "core/model/layers/branch.hpp"
#include "core/model/layers/feed_forward.hpp"

namespace tessera {

/// x += attention(norm1(x)); x += ffn(norm2(x)).
class Block {
 public:
  struct Saved {
    Branch<Attention>::Saved attention;
    Tensor middle;  ///< [M,C], the stream between the two
    Branch<FeedForward>::Saved ffn;
  };

  /// Registers layers.`number`.norm1, .attention, .norm2 and .mlp or .moe, in the registry's block of that number.
  Block(ParamRegistry& registry, std::int64_t number, const GptShape& shape);

  Saved place(Arena& arena, std::int64_t tokens) const;
  /// The stream after the block is saved.middle + y. y may be x.branch.
  void forward(const Call& call, const Residual& x, const Saved& saved, const Tensor& y = {}) const;
  /// dx becomes the gradient of the stream before the block; x is that stream's sum.
  void backward(const Call& call, const Tensor& dx, const Tensor& x, const Saved& saved) const;

 private:
  std::int64_t width_;
  DType type_;
  Branch<Attention> attention_;
  Branch<FeedForward> ffn_;
};

}  // namespace tessera
