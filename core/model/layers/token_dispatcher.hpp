#pragma once
#include <memory>

#include "core/model/layers/call.hpp"
#include "core/model/row_exchange.hpp"
#include "core/model/shape.hpp"
#include "kernels/moe/peer_rows.hpp"

namespace tessera {

/// The way of a layer's rows from tokens to experts and back. Without expert parallelism a rank's experts compute the
/// rows of its own tokens, where they lie. With it, what arrives from all ranks of the expert group: by an exchange, or
/// in the ranks' memory, which they reach (proof.expert_rows). Equal bits.
class TokenDispatcher {
 public:
  struct Saved {
    Routing routing;  ///< of this rank's tokens
    Routing arrival;  ///< of the rows that arrive; without expert parallelism of nothing
    std::shared_ptr<DispatchCounts> counts;  ///< filled by start_dispatch(); null unless the host knows them
    Tensor shifts;                           ///< of rows that move in peers' memory: see PeerRows
  };

  /// Each expert's rows begin at multiples of `row_multiple`.
  TokenDispatcher(const MoeShape& moe, std::int64_t length, std::int64_t row_multiple)
      : moe_(moe), length_(length), row_multiple_(row_multiple) {}

  RouterShape router_shape(std::int64_t tokens) const;
  /// Rows that this rank's experts have memory for.
  std::int64_t most(std::int64_t tokens) const;
  /// Number of the experts' output rows on the rank that holds their tokens.
  std::int64_t expert_outputs(std::int64_t tokens) const { return router_shape(tokens).rows(); }
  Saved place(Arena& arena, std::int64_t tokens, DType sum_type) const;

  /// Of the rows that this rank's experts compute, once dispatched: where each expert's begin, and which are no
  /// token's.
  Routing local_routing(const Saved& saved) const;
  /// How many those are, gaps between experts included: in peers' memory, as many as there is room for.
  std::int64_t rows(const Saved& saved) const { return local_routing(saved).token_of_row.elements(); }
  /// Where the rows in use end, on the device, if nobody reads those behind, as observers do: Call::rows_end.
  Tensor rows_end(const Call& call, const Saved& saved) const;
  /// Room for what the experts compute, as wide as `tokens_rows`, the rows of this rank's tokens: these themselves
  /// where they are the experts', else a temporary.
  Tensor of_experts(Arena& arena, const Saved& saved, const Tensor& tokens_rows) const;

  /// Rows on their way to experts, in the caller's frame of the arena: what arrives, and the move under way.
  struct Dispatch {
    Tensor rows = {}, numbers = {};
    Tensor arriving = {}, arriving_numbers = {};
    Pending pending = {};
  };
  /// Begins to send the tokens' x [M,C] to their experts' `experts_rows` [most(),C], of which rows() are in use. What
  /// is enqueued until finish_dispatch() overlaps with it. The host waits for counts, unless rows move in peers'
  /// memory. Collective over the expert group, as all that follows.
  Dispatch start_dispatch(const Call& call, const Saved& saved, const Tensor& experts_rows, const Tensor& x) const;
  /// Arguments of combine()'s backward.
  struct CombineBackward {
    Tensor drows;    ///< [rows(),C], the experts'; gets weight * dy
    Tensor numbers;  ///< i64 [rows()], or empty; gets the number of each, from its token's place in the global batch
    Tensor dweight;  ///< gets <dy, out>
    Tensor dy, out;
  };
  /// Backward of combine(): begins to send the gradients of answers to their experts.
  Dispatch start_combine_backward(const Call& call, const Saved& saved, const CombineBackward& of) const;
  /// Waits for the rows, which are then sorted by expert.
  void finish_dispatch(const Call& call, const Saved& saved, Dispatch dispatched) const;

  /// Combines experts_rows, the experts' answers, into y [M,C] = combine_forward() + last. Keeps them in `out` [M k,C],
  /// sorted by expert. Without y only that.
  void combine(const Call& call, const Saved& saved, const Tensor& y, const Tensor& out, const Tensor& experts_rows,
               const Tensor& last) const;

  /// Row gradients on their way to tokens, in the caller's frame of the arena.
  struct Returning {
    Tensor rows;
    Pending pending;
  };
  /// Backward of dispatch: dx = first + the sum of drows, as permute_backward(). Between the calls, dx is not touched.
  Returning start_dispatch_backward(const Call& call, const Saved& saved, const Tensor& dx, const Tensor& drows,
                                    const Tensor& first) const;
  void finish_dispatch_backward(const Call& call, const Saved& saved, const Tensor& dx, const Tensor& first,
                                Returning returning) const;

 private:
  bool local() const { return moe_.group.size == 1; }
  ArrivalShape arrival(const Saved& saved) const;
  PeerRows peers(const Call& call, const Saved& saved) const;
  /// Zeroes rows that no rank sends: gaps between experts, and those behind the last expert's where there is no
  /// rows_end().
  void clear_unsent(const Call& call, const Saved& saved, const Tensor& rows) const;
  Tensor of_tokens(Arena& arena, const Saved& saved, const Tensor& experts_rows) const;
  Dispatch send(const Call& call, const Saved& saved, const Tensor& experts_rows, const Tensor& of_tokens,
                const Tensor& numbers, const char* label) const;
  Pending send_back(const Call& call, const Saved& saved, const Tensor& of_tokens, const Tensor& experts_rows,
                    const char* label) const;

  MoeShape moe_;
  std::int64_t length_, row_multiple_;
};

}  // namespace tessera
