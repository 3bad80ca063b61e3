#pragma once
#include "core/model/layers/token_dispatcher.hpp"
#include "core/model/layers/experts.hpp"
#include "core/model/layers/shared_expert.hpp"

namespace tessera {

/// y = sum over the k chosen experts of weight times expert(x), each expert an Mlp without biases, + the shared
/// expert's answer, if there is one; [M,C] to [M,C]. Without a capacity no token is dropped. Shapes are static: S rows
/// by expert. S is M k where no expert is quantized, else more: each expert's rows begin at a multiple, with zeros
/// between. With expert parallelism there is memory for the most rows that may arrive, and kernels work on those that
/// do. Source: Mixtral (Jiang 2024); balance loss Switch (Fedus 2021), z-loss ST-MoE (Zoph 2022), rows to their
/// experts' ranks and back GShard (Lepikhin 2020), selection bias (Wang 2024).
class Moe {
 public:
  struct Saved {
    TokenDispatcher::Saved rows;
    Tensor x;          ///< [S,C], gathered; without memory where up keeps its codes
    Tensor pre;        ///< [S,F], swiglu [S,2F]
    Tensor activated;  ///< [S,F], the activation's output; without memory where down keeps its codes, a quantizer
                       ///< computes it, or backward makes it again
    Experts::Saved of_up, of_down;  ///< what the two projections keep
    Tensor out;        ///< [S,C], each row's expert's answer; with expert parallelism [M k,C], of this rank's tokens
    std::optional<SharedExpert::Saved> shared;
  };

  /// Registers `name`.router, with its bias, the projections of `name`.experts, and `name`.shared.
  /// `number`: of the model's layers with experts, from 0.
  Moe(ParamRegistry& registry, const std::string& name, const GptShape& shape, std::int64_t number = 0);

  Saved place(Arena& arena, std::int64_t tokens) const;
  static bool reads_input(const Saved&) { return true; }  ///< the router's weight gradient does
  void forward(const Call& call, const Tensor& x, const Saved& kept, const Tensor& y = {}) const;
  /// Also adds the micro-batch's auxiliary losses to call.sums, and their gradients.
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const;

 private:
  /// Whether quantizers compute the activation and its gradient, so that neither is stored.
  bool activates_in_quantizers() const;
  /// Whether backward recomputes down's input, values or codes, from `pre`.
  bool activates_again() const;
  /// What down multiplies, computed anew: in the caller's frame if it is not kept.
  Factors::Input activated(const Call& call, const Saved& now) const;
  /// The rows in use of the memory that experts keep for backward.
  Saved arrived(const Saved& saved) const;
  void route_tokens(const Call& call, const Tensor& x, const Routing& routing) const;
  /// Fills saved.x, the tokens' rows, with their experts' ranks; and what the shared expert saves, and its answer
  /// `shared`, where that is wanted.
  void dispatch(const Call& call, const Tensor& x, const Saved& saved, const Tensor& shared) const;
  /// Auxiliary losses, the gradient of the router's logits, the router's weight gradient, the load of experts, and what
  /// is recorded.
  void router_backward(const Call& call, const Tensor& dlogits, const Tensor& dweight, const Tensor& x,
                       const Routing& routing) const;
  void record(const Call& call, const RouterShape& shape, const Routing& routing) const;
  /// From the gradient of each row's answer to that of the token it was made of, onto the shared expert's in dx.
  void experts_backward(const Call& call, const Tensor& dx, const Saved& saved, const Tensor& drows,
                        const Tensor& numbers) const;

  MoeShape moe_;
  Activation activation_;
  KeepRules keep_;
  std::int64_t number_, hidden_, ffn_, length_;
  DType type_, sum_type_;
  Accumulation accumulation_;
  ParamId router_;
  std::optional<ParamId> bias_;  ///< of the choice; its gradient is the load
  std::optional<ParamId> load_;  ///< of the step before, for the balance loss; its gradient is that of this one
  Experts up_, down_;
  TokenDispatcher rows_;
  std::optional<SharedExpert> shared_;
};

}  // namespace tessera
