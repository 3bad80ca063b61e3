#pragma once
#include "core/model/layers/linear.hpp"
#include "core/model/layers/parameter.hpp"
#include "core/model/shape.hpp"
#include "kernels/attention/head_norm.hpp"

namespace tessera {

/// y = causal attention over one projection of x to queries, keys and values, and a projection back; [M,C] to [M,C].
/// With a cache in the call, rows are the next tokens of one sequence; those before are in the cache.
class Attention {
 public:
  struct Saved {
    Tensor projected;  ///< [M, (H + 2G) D], before query and key norm; empty without it
    Tensor rstd;       ///< [M, qk_norms()], likewise
    Tensor qkv;        ///< [M, (H + 2G) D], rotated where positions are rotary
    Tensor lse;        ///< [sequences, H, T]
    Tensor out;        ///< [M, H D], before the projection back
    Linear::Saved of_qkv, of_out;  ///< what the two projections keep
  };

  /// Registers `name`.qkv, with query and key norm `name`.q_norm and `name`.k_norm, and `name`.out.
  Attention(ParamRegistry& registry, const std::string& name, const GptShape& shape);

  Saved place(Arena& arena, std::int64_t tokens) const;
  /// Whether backward reads the values of x, and not its shape alone.
  static bool reads_input(const Saved& saved) { return !saved.of_qkv; }
  void forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y = {}) const;
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const;

 private:
  AttentionShape shape_of(std::int64_t tokens) const;

  struct HeadNorms {
    ParamId q, k;
    QkNormOver over;
  };
  static std::optional<HeadNorms> add_norms(ParamRegistry& registry, const std::string& name, const GptShape& shape);
  void norm_backward(const Call& call, const Tensor& dqkv, const Saved& saved) const;

  AttentionShape one_;  ///< of one sequence
  Keep codes_;          ///< of the input of out
  DType type_, sum_type_;
  double eps_;
  Linear qkv_;
  std::optional<HeadNorms> norms_;
  Linear out_;
};

}  // namespace tessera
