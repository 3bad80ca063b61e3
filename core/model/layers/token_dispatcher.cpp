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
  if (moe_.by_peers()) {
    saved.shifts = arena.keep(DType::i32, {moe_.experts});
    saved.arrival.drops = true;  // rows behind the last expert's are no token's
  } else {
    saved.arrival.row_of_slot = arena.keep(DType::i32, {moe_.arrival(tokens, row_multiple_).room, 1});
    saved.counts = std::make_shared<DispatchCounts>();
  }
  saved.arrival.offsets = arena.keep(DType::i32, {moe_.held() + 1});
  saved.arrival.token_of_row = arena.keep(DType::i32, {most(tokens)});
  return saved;
}

Routing TokenDispatcher::local_routing(const Saved& saved) const {
  if (local()) return saved.routing;
  if (moe_.by_peers()) return saved.arrival;
  Routing held = saved.arrival;
  held.row_of_slot = held.row_of_slot.row_range(0, saved.counts->arriving);
  held.token_of_row = held.token_of_row.flat(0, saved.counts->rows);
  return held;
}

Tensor TokenDispatcher::rows_end(const Call& call, const Saved& saved) const {
  if (!moe_.by_peers() || !call.observers.empty()) return {};
  return saved.arrival.offsets.flat(moe_.held(), 1);
}

void TokenDispatcher::clear_unsent(const Call& call, const Saved& saved, const Tensor& rows) const {
  const Tensor end = rows_end(call, saved);
  if (!end || row_multiple_ > 1) clear_gaps(call.stream, rows, saved.arrival, end);
}

Tensor TokenDispatcher::of_experts(Arena& arena, const Saved& saved, const Tensor& tokens_rows) const {
  return local() ? tokens_rows : arena.temp(tokens_rows.type, {rows(saved), tokens_rows.columns()});
}

/// Room for the rows of this rank's tokens: those of its experts themselves where they are the same.
Tensor TokenDispatcher::of_tokens(Arena& arena, const Saved& saved, const Tensor& experts_rows) const {
  const std::int64_t slots = saved.routing.token_of_row.elements();
  return local() ? experts_rows : arena.temp(experts_rows.type, {slots, experts_rows.columns()});
}

PeerRows TokenDispatcher::peers(const Call& call, const Saved& saved) const {
  return {saved.shifts, call.exchange->distances()};
}

TokenDispatcher::Dispatch TokenDispatcher::start_dispatch(const Call& call, const Saved& saved,
                                                          const Tensor& experts_rows, const Tensor& x) const {
  if (local()) {
    permute_forward(call.stream, experts_rows, x, saved.routing);
    return {};
  }
  require(call.exchange != nullptr, "TokenDispatcher", "experts of other ranks need an exchange of rows");
  const ArrivalShape shape = arrival(saved);
  DispatchStats* const arrivals = call.sums ? &call.sums->arrivals : nullptr;
  if (moe_.by_peers()) {
    const Tensor& counts = call.exchange->counts();
    count_rows(call.stream, counts.flat(shape.place * shape.experts, shape.experts), saved.routing);
    call.exchange->gather(call.stream, shape);
    find_shifts(call.stream, shape, saved.shifts, counts);
    tessera::arrive(call.stream, shape, saved.arrival, counts, arrivals);
    clear_unsent(call, saved, experts_rows);
    return {.pending = call.exchange->move(call.stream, shape, {&experts_rows, 1}, "expert rows", [&](Stream& stream) {
      send_rows(stream, experts_rows, x, saved.routing, peers(call, saved), Weighted::no);
    })};
  }
  const Tensor counts = call.arena.temp(DType::i32, {shape.ranks, shape.experts});
  count_rows(call.stream, counts.flat(shape.place * shape.experts, shape.experts), saved.routing);
  const Event copied = call.exchange->gather(call.stream, shape, counts);
  const Tensor permuted = of_tokens(call.arena, saved, experts_rows);
  permute_forward(call.stream, permuted, x, saved.routing);  // while the host waits for the counts
  *saved.counts = call.exchange->gathered(call.stream, shape, copied);
  tessera::arrive(call.stream, shape, local_routing(saved), counts, arrivals);
  return send(call, saved, experts_rows.row_range(0, rows(saved)), permuted, {}, "expert rows");
}

TokenDispatcher::Dispatch TokenDispatcher::start_combine_backward(const Call& call, const Saved& saved,
                                                                  const CombineBackward& of) const {
  const auto& [drows, numbers, dweight, dy, out] = of;
  const Routing& routing = saved.routing;
  if (!moe_.by_peers()) {
    const Tensor permuted = of_tokens(call.arena, saved, drows);
    combine_backward(call.stream, permuted, dweight, dy, out, routing);
    return send(call, saved, drows, permuted, numbers, "answer gradients");
  }
  combine_backward(call.stream, {}, dweight, dy, out, routing);
  std::vector<Tensor> moved{drows};
  if (numbers) moved.push_back(numbers.view({numbers.elements(), 1}));
  for (const Tensor& rows : moved) clear_unsent(call, saved, rows);
  const auto kernels = [&](Stream& stream) {
    send_rows(stream, of.drows, of.dy, routing, peers(call, saved), Weighted::yes);
    if (of.numbers) send_numbers(stream, of.numbers, routing, peers(call, saved), call.first_token);
  };
  return {.pending = call.exchange->move(call.stream, arrival(saved), moved, "answer gradients", kernels)};
}

/// Begins the exchange of rows that are sorted by expert.
TokenDispatcher::Dispatch TokenDispatcher::send(const Call& call, const Saved& saved, const Tensor& experts_rows,
                                                const Tensor& of_tokens, const Tensor& numbers,
                                                const char* label) const {
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
  if (!dispatched.pending) return;
  dispatched.pending.wait(call.stream);
  if (moe_.by_peers()) return;
  const Routing routing = local_routing(saved);
  if (const Tensor& numbers = dispatched.numbers)
    permute_forward(call.stream, numbers.view({numbers.elements(), 1}), dispatched.arriving_numbers, routing);
  permute_forward(call.stream, dispatched.rows, dispatched.arriving, routing);
}

/// Begins the exchange of rows back to their tokens, where they are sorted by expert.
Pending TokenDispatcher::send_back(const Call& call, const Saved& saved, const Tensor& of_tokens,
                                   const Tensor& experts_rows, const char* label) const {
  const Tensor returning = call.arena.temp(experts_rows.type, {saved.counts->arriving, experts_rows.columns()});
  permute_backward(call.stream, returning, experts_rows, local_routing(saved));  // one row each
  // Where a rank had no room nothing was sent, and nothing comes back; the run ends once the step has been reported.
  if (saved.counts->arriving == 0) clear(call.stream, of_tokens);
  return call.exchange->combine(call.stream, *saved.counts, {of_tokens, returning}, label);
}

void TokenDispatcher::combine(const Call& call, const Saved& saved, const Tensor& y, const Tensor& out,
                              const Tensor& experts_rows, const Tensor& last) const {
  if (moe_.by_peers()) {
    const auto kernels = [&](Stream& stream) {
      fetch_answers(stream, y, out, experts_rows, saved.routing, peers(call, saved), last);
    };
    call.exchange->move(call.stream, arrival(saved), {&experts_rows, 1}, "expert answers", kernels).wait(call.stream);
    return;
  }
  if (!local()) send_back(call, saved, out, experts_rows, "expert answers").wait(call.stream);
  if (y) combine_forward(call.stream, y, out, saved.routing, last);
}

TokenDispatcher::Returning TokenDispatcher::start_dispatch_backward(const Call& call, const Saved& saved,
                                                                    const Tensor& dx, const Tensor& drows,
                                                                    const Tensor& first) const {
  if (local()) return {drows, {}};
  if (moe_.by_peers())
    return {{}, call.exchange->move(call.stream, arrival(saved), {&drows, 1}, "row gradients", [&](Stream& stream) {
      fetch_gradients(stream, dx, drows, saved.routing, peers(call, saved), first);
    })};
  const Tensor permuted = of_tokens(call.arena, saved, drows);
  return {permuted, send_back(call, saved, permuted, drows, "row gradients")};
}

void TokenDispatcher::finish_dispatch_backward(const Call& call, const Saved& saved, const Tensor& dx,
                                               const Tensor& first, Returning returning) const {
  if (returning.pending) returning.pending.wait(call.stream);
  if (returning.rows) permute_backward(call.stream, dx, returning.rows, saved.routing, first);
}

}  // namespace tessera
