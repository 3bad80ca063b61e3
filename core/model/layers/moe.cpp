#include "core/model/layers/moe.hpp"

#include <algorithm>

#include "core/device/region.hpp"
#include "core/model/layers/activate.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

ExpertsShape experts_shape(const GptShape& shape, MatrixName part, std::int64_t in, std::int64_t out,
                           double deviation) {
  return {shape.moe.value(), in, out, deviation, shape.accumulation, part, {}};
}

ExpertsShape inner_shape(const GptShape& shape) {
  ExpertsShape inner =
      experts_shape(shape, MatrixName::experts_up, shape.hidden, inner_width(shape.activation, shape.moe->ffn),
                    initial_deviation);
  inner.parts = inner_parts(shape.activation, shape.moe->ffn);
  return inner;
}

/// The call as products of experts' rows see it.
Call with_rows(const Call& call, const Routing& routing, const Tensor& end) {
  Call of_rows = call;
  of_rows.row_tokens = routing.token_of_row;
  of_rows.rows_end = end;
  return of_rows;
}

/// A number for each expert that the step counts, in a model that has it.
std::optional<ParamId> add_counted(ParamRegistry& registry, const std::string& name, Role role, const MoeShape& moe) {
  if (role == Role::router_bias ? !moe.bias : moe.balance_over != BalanceOver::batch) return std::nullopt;
  return add_whole(registry, name, {moe.experts}, role, {});
}

}  // namespace

Moe::Moe(ParamRegistry& registry, const std::string& name, const GptShape& shape, std::int64_t number)
    : moe_(shape.moe.value()),
      activation_(shape.activation),
      keep_(shape.keep),
      number_(number),
      hidden_(shape.hidden),
      ffn_(moe_.ffn),
      length_(shape.seq_len),
      type_(shape.compute),
      sum_type_(shape.sum_type()),
      accumulation_(shape.accumulation),
      router_(add_whole(registry, name + ".router.weight", {moe_.experts, hidden_}, Role::router,
                        normal_start(initial_deviation))),
      bias_(add_counted(registry, name + ".router.bias", Role::router_bias, moe_)),
      load_(add_counted(registry, name + ".router.load", Role::router_load, moe_)),
      up_(registry, name + ".experts", inner_name(activation_), inner_shape(shape)),
      down_(registry, name + ".experts", "down",
            experts_shape(shape, MatrixName::experts_down, ffn_, hidden_, residual_deviation(shape.layers))),
      rows_(moe_, length_, std::max(up_.row_multiple(), down_.row_multiple())) {
  if (moe_.shared_ffn > 0) shared_.emplace(registry, name + ".shared", shape);
}

bool Moe::activates_in_quantizers() const {
  return fits_quantizers(activation_, ffn_) && down_.computes_activation() && up_.computes_gradient();
}

bool Moe::activates_again() const { return keep_.makes_activation_again(down_.quantizes_columns()); }

Factors::Input Moe::activated(const Call& call, const Saved& now) const {
  if (activates_in_quantizers()) return activation_of(activation_, now.pre);
  const Tensor activated = now.activated ? now.activated : call.arena.temp(type_, now.activated.shape);
  activate(call.stream, activation_, activated, now.pre, call.rows_end);
  return activated;
}

Moe::Saved Moe::place(Arena& arena, std::int64_t tokens) const {
  const std::int64_t most = rows_.most(tokens);
  Saved saved;
  saved.rows = rows_.place(arena, tokens, sum_type_);
  saved.of_up = up_.place(arena, most);
  saved.x = {nullptr, type_, {most, hidden_}};
  if (!saved.of_up) saved.x = arena.keep(type_, saved.x.shape);
  saved.pre = arena.keep(type_, {most, inner_width(activation_, ffn_)});
  saved.activated = {nullptr, type_, {most, ffn_}};
  if (!activates_in_quantizers() && !activates_again()) {
    saved.of_down = down_.place(arena, most);
    if (!saved.of_down) saved.activated = arena.keep(type_, saved.activated.shape);
  }
  saved.out = arena.keep(type_, {rows_.expert_outputs(tokens), hidden_});
  if (shared_) saved.shared = shared_->place(arena, tokens);
  return saved;
}

Moe::Saved Moe::arrived(const Saved& saved) const {
  const std::int64_t rows = rows_.rows(saved.rows);
  Saved arrived = saved;
  for (Tensor* tensor : {&arrived.x, &arrived.pre}) *tensor = tensor->row_range(0, rows);
  arrived.activated.shape = {rows, ffn_};
  arrived.of_up = up_.first_rows(saved.of_up, rows);
  arrived.of_down = down_.first_rows(saved.of_down, rows);
  return arrived;
}

void Moe::route_tokens(const Call& call, const Tensor& x, const Routing& routing) const {
  const Arena::Frame frame(call.arena);
  const Tensor logits = routing.logits ? routing.logits : call.arena.temp(sum_type_, routing.scores.shape);
  router_forward(call.stream, logits, x, call.weights.operand(call.stream, router_, Side::rowwise)->data);
  const Use bias = use_of(call, bias_);
  RouteGiven given;
  if (const Tensor& choices = call.choices.given) given.choices = choices.row_range(number_, 1);
  if (call.taken) given.taken = call.taken.row_range(number_, 1);
  route(call.stream, call.arena, rows_.router_shape(x.rows()), routing, logits, bias->data, given);
  if (const Tensor& chosen = call.choices.chosen)
    copy(call.stream, chosen.row_range(number_, 1).view(routing.expert.shape), routing.expert);
}

void Moe::forward(const Call& call, const Tensor& x, const Saved& kept, const Tensor& y) const {
  const Region region(call.stream, RegionName::experts);
  const Arena::Frame answered(call.arena);
  Saved saved = kept;
  if (!saved.x) saved.x = call.arena.temp(type_, saved.x.shape);
  const Tensor shared = shared_ && y ? call.arena.temp(type_, x.shape) : Tensor{};
  route_tokens(call, x, saved.rows.routing);
  dispatch(call, x, saved, shared);
  const Routing held = rows_.local_routing(saved.rows);
  const Saved now = arrived(saved);
  const Call of_rows = with_rows(call, held, rows_.rows_end(call, saved.rows));
  up_.forward(of_rows, now.pre, now.x, held, now.of_up);
  {
    const Arena::Frame frame(call.arena);
    const Tensor expert_outputs = rows_.of_experts(call.arena, saved.rows, saved.out);
    down_.forward(of_rows, expert_outputs, activated(of_rows, now), held, now.of_down);
    rows_.combine(call, saved.rows, y, saved.out, expert_outputs, shared);
  }
}

void Moe::dispatch(const Call& call, const Tensor& x, const Saved& saved, const Tensor& shared) const {
  const Arena::Frame frame(call.arena);
  TokenDispatcher::Dispatch dispatched = rows_.start_dispatch(call, saved.rows, saved.x, x);
  if (shared_) shared_->forward(call, x, *saved.shared, shared);  // under the exchange
  rows_.finish_dispatch(call, saved.rows, std::move(dispatched));
}

void Moe::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const {
  const Region region(call.stream, RegionName::experts);
  const Routing& routing = saved.rows.routing;
  const Arena::Frame frame(call.arena);
  const Tensor dlogits = call.arena.temp(sum_type_, routing.scores.shape);
  {
    const Arena::Frame inner(call.arena);
    const Tensor drows = call.arena.temp(type_, arrived(saved).x.shape);  // of the answers, then of what was asked
    const Tensor numbers = up_.draws() || down_.draws() ? call.arena.temp(DType::i64, {drows.rows()}) : Tensor{};
    {
      const Arena::Frame travelling(call.arena);
      const Tensor dweight = call.arena.temp(sum_type_, routing.weight.shape);
      TokenDispatcher::Dispatch dispatched =
          rows_.start_combine_backward(call, saved.rows, {drows, numbers, dweight, dy, saved.out});
      router_backward(call, dlogits, dweight, x, routing);  // under the exchange, as is the next
      if (shared_) shared_->backward(call, dx, dy, x, *saved.shared);
      rows_.finish_dispatch(call, saved.rows, std::move(dispatched));
    }
    experts_backward(call, dx, saved, drows, numbers);
  }
  router_input_gradient(call.stream, dx, dlogits, call.weights.operand(call.stream, router_, Side::columnwise)->data);
}

void Moe::experts_backward(const Call& call, const Tensor& dx, const Saved& saved, const Tensor& drows,
                           const Tensor& numbers) const {
  const Routing held = rows_.local_routing(saved.rows);
  const Saved now = arrived(saved);
  const Call of_rows = with_rows(call, held, rows_.rows_end(call, saved.rows));
  const Tensor dact = call.arena.temp(type_, now.activated.shape);
  {
    const Arena::Frame frame(call.arena);
    const Factors::Gradient danswers = down_.gradient(of_rows, drows, numbers);
    const bool kept = now.activated || now.of_down;
    const Factors::Input x = kept ? now.activated : activated(of_rows, now);
    down_.weight_gradient(of_rows, danswers, x, held, now.of_down);
    down_.input_gradient(of_rows, dact, danswers, held);
  }
  const Factors::OutputGradient of_pre = activates_in_quantizers()
                                     ? activation_gradient_of(activation_, dact, now.pre)
                                     : activate_backward(call.stream, call.arena, activation_, dact, now.pre,
                                                         of_rows.rows_end);
  const Factors::Gradient dpre = up_.gradient(of_rows, of_pre, numbers);
  up_.input_gradient(of_rows, drows, dpre, held);
  const Tensor first = shared_ ? dx : Tensor{};  // mutation: shared_expert_forgets
  TokenDispatcher::Returning returning = rows_.start_dispatch_backward(call, saved.rows, dx, drows, first);
  up_.weight_gradient(of_rows, dpre, now.x, held, now.of_up);  // under the exchange
  rows_.finish_dispatch_backward(call, saved.rows, dx, first, std::move(returning));
}

void Moe::router_backward(const Call& call, const Tensor& dlogits, const Tensor& dweight, const Tensor& x,
                          const Routing& routing) const {
  const RouterShape shape = rows_.router_shape(x.rows());
  const Use before = use_of(call, load_);
  auxiliary_losses(call.stream, call.arena, shape, routing, &call.sums->balance, &call.sums->z, before->data);
  add_busiest_expert(call.stream, shape, routing, &call.sums->busiest);
  // The loss is a mean over tokens; the balance loss a mean over sequences, of T tokens each.
  const double balance_scale = moe_.balance_coef * call.loss_scale * static_cast<double>(length_);
  const double z_scale = moe_.z_coef * call.loss_scale;
  route_backward(call.stream, shape, dlogits, dweight, routing, balance_scale, z_scale, before->data);
  contribute(call, router_, [&](const Gradient& dw) {
    router_weight_gradient(call.stream, call.arena, dw, dlogits, x, accumulation_);
  });
  for (const std::optional<ParamId>& counted : {bias_, load_})
    if (counted) contribute(call, *counted, [&](const Gradient& n) { add_load(call.stream, n, shape, routing); });
  if (call.routing) record(call, shape, routing);
}

void Moe::record(const Call& call, const RouterShape& shape, const Routing& routing) const {
  const Tensor words = call.routing.words.row_range(number_, 1);
  record_routing(call.stream, shape, routing, words, call.first_token);
  const Use bias = use_of(call, bias_);
  if (bias->data) convert(call.stream, call.routing.bias.row_range(number_, 1), bias->data);
  if (call.choices.given)
    count_differing(call.stream, shape, routing, bias->data,
                    words.as<std::int64_t>() + RoutingRecord::differ(moe_.experts));
}

}  // namespace tessera
