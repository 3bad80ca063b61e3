#pragma once
#include <memory>

#include "core/model/layers/call.hpp"
#include "core/model/row_exchange.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// The way of a layer's rows from tokens to experts and back. Without expert parallelism a rank's experts compute the
/// rows of its own tokens, where they lie. With it, what arrives from all ranks of the expert group.
class TokenDispatcher {
 public:
  struct Saved {
    Routing routing;  ///< of this rank's tokens
    Routing arrival;  ///< of the rows that arrive; without expert parallelism of nothing
    std::shared_ptr<DispatchCounts> counts;  ///< filled by finish_counts(); null without expert parallelism
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

  /// Counts of a layer's rows on their way to the host, in the caller's frame of the arena.
  struct Counts {
    Tensor all;  ///< i32 [ranks, experts]
    Event copied;
  };
  /// Tells the expert group how the tokens were routed. Collective over the expert group, as start_dispatch() and
  /// combine() are; all three move nothing without expert parallelism.
  Counts start_counts(const Call& call, const Saved& saved) const;
  /// The host waits for the counts. From here on it is known which rows arrive.
  void finish_counts(const Call& call, const Saved& saved, const Counts& counts) const;
  /// Of the rows that this rank's experts compute: where each expert's begin, and which are no token's.
  Routing local_routing(const Saved& saved) const;
  /// How many those are, gaps between experts included.
  std::int64_t rows(const Saved& saved) const { return local_routing(saved).token_of_row.elements(); }

  /// Room for the rows of this rank's tokens: `experts_rows` itself where they are those of its experts, else a
  /// temporary of the same type and width.
  Tensor of_tokens(Arena& arena, const Saved& saved, const Tensor& experts_rows) const;
  /// The same for what the experts compute, of the width of `tokens_rows`.
  Tensor of_experts(Arena& arena, const Saved& saved, const Tensor& tokens_rows) const;
  /// Rows being dispatched to their experts, in the caller's frame of the arena: what is sent, what arrives, and the
  /// exchange under way.
  struct Dispatch {
    Tensor rows, numbers;
    Tensor arriving, arriving_numbers;
    Pending pending;
  };
  /// Begins to send rows of tokens to their experts. `numbers` (i64 [rows], or empty) becomes the number of each, from
  /// its token's place in the global batch. What is enqueued until finish_dispatch() overlaps with the exchange.
  Dispatch start_dispatch(const Call& call, const Saved& saved, const Tensor& experts_rows, const Tensor& of_tokens,
             const Tensor& numbers, const char* label) const;
  /// Waits for the rows and orders them by expert.
  void finish_dispatch(const Call& call, const Saved& saved, Dispatch dispatched) const;
  /// Begins to send rows of experts to their tokens. The result is empty without expert parallelism.
  Pending combine(const Call& call, const Saved& saved, const Tensor& of_tokens, const Tensor& experts_rows,
               const char* label) const;

 private:
  bool local() const { return moe_.group.size == 1; }
  ArrivalShape arrival(const Saved& saved) const;

  MoeShape moe_;
  std::int64_t length_, row_multiple_;
};

}  // namespace tessera
