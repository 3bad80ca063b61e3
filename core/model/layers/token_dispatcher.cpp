#include "core/model/layers/token_dispatcher.hpp"

#include <algorithm>

#include "kernels/convert/convert.hpp"

namespace tessera {

/// Whole sequences, or a part of one.
RouterShape TokenDispatcher::router_shape(std::int64_t tokens) const {
  const std::int64_t length = std::min(tokens, length_);
  return {.sequences = tokens / length,
          .length = length,
          .experts = moe_.experts,
          .top_k = moe_.top_k,
          .renormalize = moe_.renormalize,
          .row_multiple = local() ? row_multiple_ : 1,
          .rule = moe_.rule,
          .capacity = moe_.slots_of_sequence(length_)};
}

std::int64_t TokenDispatcher::most(std::int64_t tokens) const {
  if (local()) return router_shape(tokens).rows();
  const ArrivalShape shape = moe_.arrival(tokens, row_multiple_);
  return shape.rows(shape.room);
}

ArrivalShape TokenDispatcher::arrival(const Saved& saved) const {
  return moe_.arrival(saved.routing.row_of_slot.rows(), row_multiple_);
}

TokenDispatcher::Saved TokenDispatcher::place(Arena& arena, std::int64_t tokens, DType sum_type) const {
  const RouterShape shape = router_shape(tokens);
  Saved saved;
  Routing& r = saved.routing;
  r.scores = arena.keep(sum_type, {tokens, moe_.experts});
  if (moe_.rule.scores == Scores::sigmoid) {
    r.total = arena.keep(sum_type, {tokens});
    if (moe_.z_coef > 0) r.logits = arena.keep(sum_type, {tokens, moe_.experts});
  }
  r.log_sum = arena.keep(sum_type, {tokens});
  r.expert = arena.keep(DType::i32, {tokens, moe_.top_k});
  r.weight = arena.keep(sum_type, {tokens, moe_.top_k});
  r.offsets = arena.keep(DType::i32, {moe_.experts + 1});
  r.row_of_slot = arena.keep(DType::i32, {tokens, moe_.top_k});
  r.token_of_row = arena.keep(DType::i32, {shape.rows()});
  r.load = arena.keep(DType::i32, {shape.sequences, moe_.experts});
  r.drops = shape.capacity > 0;
  if (local()) return saved;
  saved.arrival.offsets = arena.keep(DType::i32, {moe_.held() + 1});
  saved.arrival.row_of_slot = arena.keep(DType::i32, {moe_.arrival(tokens, row_multiple_).room, 1});
  saved.arrival.token_of_row = arena.keep(DType::i32, {most(tokens)});
  saved.counts = std::make_shared<DispatchCounts>();
  return saved;
}

TokenDispatcher::Counts TokenDispatcher::start_counts(const Call& call, const Saved& saved) const {
  if (local()) return {};
  require(call.exchange != nullptr, "TokenDispatcher", "experts of other ranks need an exchange of rows");
  const ArrivalShape shape = arrival(saved);
  const Tensor counts = call.arena.temp(DType::i32, {shape.ranks, shape.experts});
  count_rows(call.stream, counts.flat(shape.place * shape.experts, shape.experts), saved.routing);
  return {counts, call.exchange->gather(call.stream, shape, counts)};
}

void TokenDispatcher::finish_counts(const Call& call, const Saved& saved, const Counts& counts) const {
  if (local()) return;
  const ArrivalShape shape = arrival(saved);
  *saved.counts = call.exchange->gathered(call.stream, shape, counts.copied);
  tessera::arrive(call.stream, shape, local_routing(saved), counts.all, call.sums ? &call.sums->arrivals : nullptr);
}

Routing TokenDispatcher::local_routing(const Saved& saved) const {
  if (local()) return saved.routing;
  Routing held = saved.arrival;
  held.row_of_slot = held.row_of_slot.row_range(0, saved.counts->arriving);
  held.token_of_row = held.token_of_row.flat(0, saved.counts->rows);
  return held;
}

Tensor TokenDispatcher::of_tokens(Arena& arena, const Saved& saved, const Tensor& experts_rows) const {
  const std::int64_t slots = saved.routing.token_of_row.elements();
  return local() ? experts_rows : arena.temp(experts_rows.type, {slots, experts_rows.columns()});
}

Tensor TokenDispatcher::of_experts(Arena& arena, const Saved& saved, const Tensor& tokens_rows) const {
  return local() ? tokens_rows : arena.temp(tokens_rows.type, {rows(saved), tokens_rows.columns()});
}

TokenDispatcher::Dispatch TokenDispatcher::start_dispatch(const Call& call, const Saved& saved,
                                                          const Tensor& experts_rows, const Tensor& of_tokens,
                                                          const Tensor& numbers, const char* label) const {
  Dispatch dispatched{experts_rows, numbers, {}, {}, {}};
  if (local()) {
    if (numbers) number_rows(call.stream, numbers, saved.routing, call.first_token);
    return dispatched;
  }
  const std::int64_t arriving = saved.counts->arriving;
  dispatched.arriving = call.arena.temp(experts_rows.type, {arriving, experts_rows.columns()});
  std::vector<RowExchange::Move> moves = {{dispatched.arriving, of_tokens}};
  if (numbers) {
    const Tensor mine = call.arena.temp(DType::i64, {of_tokens.rows(), 1});
    number_rows(call.stream, mine, saved.routing, call.first_token);
    dispatched.arriving_numbers = call.arena.temp(DType::i64, {arriving, 1});
    moves.push_back({dispatched.arriving_numbers, mine});
  }
  dispatched.pending = call.exchange->dispatch(call.stream, *saved.counts, moves, label);
  return dispatched;
}

void TokenDispatcher::finish_dispatch(const Call& call, const Saved& saved, Dispatch dispatched) const {
  if (local()) return;
  dispatched.pending.wait(call.stream);
  const Routing routing = local_routing(saved);
  if (const Tensor& numbers = dispatched.numbers)
    permute_forward(call.stream, numbers.view({numbers.elements(), 1}), dispatched.arriving_numbers, routing);
  permute_forward(call.stream, dispatched.rows, dispatched.arriving, routing);
}

Pending TokenDispatcher::combine(const Call& call, const Saved& saved, const Tensor& of_tokens,
                                 const Tensor& experts_rows, const char* label) const {
  if (local()) return {};
  const Tensor returning = call.arena.temp(experts_rows.type, {saved.counts->arriving, experts_rows.columns()});
  permute_backward(call.stream, returning, experts_rows, local_routing(saved));  // one row each
  // Where a rank had no room nothing was sent, and nothing comes back; the run ends once the step has been reported.
  if (saved.counts->arriving == 0) clear(call.stream, of_tokens);
  return call.exchange->combine(call.stream, *saved.counts, {of_tokens, returning}, label);
}

}  // namespace tessera
