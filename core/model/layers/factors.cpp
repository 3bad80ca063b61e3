#include "core/model/layers/factors.hpp"

#include "core/model/factor_observer.hpp"
#include "core/model/layers/copies.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera {
namespace {

std::uint64_t draw_name(const ParamSpec& weight, const char* side) {
  return fnv1a64("sr:" + weight.canonical.name + ":" + side);
}

/// A place for the bf16 values of one copy of one matrix.
Copy place_values(Arena& arena, FormatId format, Side side, formats::Matrix m) {
  const FormatTraits traits = traits_of(format);
  Copy copy;
  copy.data = arena.temp(DType::bf16, {m.rows, m.columns});
  if (traits.tensor_amax) copy.amax = arena.temp(DType::f32, {traits.amaxes(side, m)});
  return copy;
}

/// What a quantizer computes from, or nothing where it reads stored values.
template <class Values>
QuantizerInput input_of(const Values& values) {
  const auto one = []<class X>(const X& x) -> QuantizerInput {
    if constexpr (std::is_same_v<X, Tensor>)
      return {};
    else
      return x;
  };
  return std::visit(one, values);
}

Tensor without_memory(const Tensor& t) { return {nullptr, t.type, t.shape}; }

/// Quantizes what is stored, or what is computed on the way, into the copies of `matrix`.
template <class Values>
void quantize(const Call& call, FormatId format, const Values& values, const QuantizedMatrix& matrix, Purpose purpose) {
  const auto one = [&]<class X>(const X& x) {
    if constexpr (std::is_same_v<X, Tensor>)
      quantize_one(call.stream, format, matrix, purpose);
    else
      quantize_one(call.stream, format, matrix, x);
  };
  std::visit(one, values);
}

QuantizedMatrix matrix_of(const Call& call, const Tensor& values) {
  QuantizedMatrix matrix;
  matrix.matrix = {values.rows(), values.columns()};
  matrix.values = values;
  matrix.rows_end = call.rows_end;
  matrix.not_finite = call.not_finite();
  return matrix;
}

/// Makes one copy, or both if `side` is empty: codes if tensor cores multiply them, else fake-quantized bf16 values.
void make(const Call& call, FormatId format, QuantizedMatrix& matrix, std::optional<Side> side, Purpose purpose,
          bool multiplied) {
  if (multiplied) {
    place(call.arena, format, matrix, side);
    return quantize_one(call.stream, format, matrix, purpose);
  }
  if (side != Side::columnwise) matrix.rowwise = place_values(call.arena, format, Side::rowwise, matrix.matrix);
  if (side != Side::rowwise) matrix.columnwise = place_values(call.arena, format, Side::columnwise, matrix.matrix);
  make_factors(call.stream, format, matrix, purpose);
}

bool multiplied(gemm::Form form, const Treatment::Format& a, const Treatment::Format& b) {
  return a && b && gemm::native_pair(form, *a, *b);
}

}  // namespace

Factors::Factors(const ParamSpec& weight)
    : weight_(weight.canonical.name),
      treatment_(weight.treatment),  // mutation: a_slot_is_dropped
      rowwise_draws_(draw_name(weight, "row")),
      columnwise_draws_(draw_name(weight, "col")) {}

bool Factors::multiplies_activation(Side side) const {
  return side == Side::rowwise ? multiplied(gemm::Form::forward, of_activation(side), of_weight(side))
                               : multiplied(gemm::Form::weight_gradient, of_gradient(side), of_activation(side));
}

bool Factors::multiplies_gradient(Side side) const {
  return side == Side::rowwise
             ? multiplied(gemm::Form::input_gradient, of_gradient(side), of_weight(Side::columnwise))
             : multiplied(gemm::Form::weight_gradient, of_gradient(side), of_activation(side));
}

Tensor Factors::like(const Input& x) {
  if (const Gelu* const gelu = std::get_if<Gelu>(&x)) return without_memory(gelu->pre);
  if (const Swiglu* const swiglu = std::get_if<Swiglu>(&x))
    return {nullptr, swiglu->gate_up.type, {swiglu->gate_up.rows(), swiglu->gate_up.columns() / 2}};
  return std::get<Tensor>(x);
}

Tensor Factors::like(const OutputGradient& dy) {
  if (const GeluGradient* const gelu = std::get_if<GeluGradient>(&dy)) return without_memory(gelu->dy);
  if (const SwigluGradient* const swiglu = std::get_if<SwigluGradient>(&dy)) return without_memory(swiglu->gate_up);
  return std::get<Tensor>(dy);
}

void Factors::show(const Call& call, Purpose purpose, const QuantizerInput& input, const QuantizedMatrix& matrix,
                   std::optional<Side> side) const {
  if (call.observers.empty()) return;
  for (const Side one : {Side::rowwise, Side::columnwise}) {
    if (side && side != one) continue;
    const Format& format = purpose.role == Purpose::Role::activation ? of_activation(one) : of_gradient(one);
    for (FactorObserver* observer : call.observers)
      observer->made(call.stream, {weight_, format, purpose, one, matrix, input, call.row_tokens, call.first_token,
                                   call.arena});
  }
}

void Factors::show(const Call& call, Side side, std::span<const Operand> operands) const {
  for (FactorObserver* observer : call.observers) observer->read(call.stream, {weight_, side, operands});
}

Operand Factors::activation(const Call& call, const Input& x, Side side) const {
  const Format& format = of_activation(side);
  QuantizedMatrix matrix = matrix_of(call, like(x));
  if (!format) {
    show(call, of_x(), {}, matrix, side);
    return std::get<Tensor>(x);
  }
  if (std::holds_alternative<Tensor>(x)) {
    make(call, *format, matrix, side, of_x(), multiplies_activation(side));
  } else {
    place(call.arena, *format, matrix, side);
    quantize(call, *format, x, matrix, of_x());
  }
  show(call, of_x(), input_of(x), matrix, side);
  return operand_of(*format, side, matrix);
}

bool Factors::makes_both() const {
  const Format& format = of_activation(Side::columnwise);
  return format && format == of_activation(Side::rowwise) && multiplies_activation(Side::rowwise) &&
         multiplies_activation(Side::columnwise);
}

Factors::Saved Factors::place_columns(Arena& arena, formats::Matrix x, Values values) const {
  const Format& format = of_activation(Side::columnwise);
  if (!format || (values == Values::kept && !makes_both())) return {};
  const FormatTraits traits = traits_of(*format);
  if (traits.columnwise == formats::Columnwise::shared || !traits.takes(Side::columnwise, x)) return {};
  return {place_copy(*format, Side::columnwise, x, 1,
                     [&](DType type, const Shape& shape) { return arena.keep(type, shape); })};
}

Factors::Saved Factors::first_rows(const Saved& saved, formats::Matrix x) const {
  if (!saved) return {};
  Saved first = saved;
  const FormatTraits traits = traits_of(*of_activation(Side::columnwise));
  first.columns.data.shape = traits.data_shape(Side::columnwise, x);
  if (traits.scaled) first.columns.scales.shape = traits.scale_shape(Side::columnwise, x);
  return first;
}

Operand Factors::activation(const Call& call, const Input& x, const Saved& saved) const {
  if (!makes_both()) {
    activation_columns(call, x, saved);
    return activation(call, x, Side::rowwise);
  }
  const FormatId format = *of_activation(Side::rowwise);
  QuantizedMatrix matrix = matrix_of(call, like(x));
  place(call.arena, format, matrix, Side::rowwise);
  matrix.columnwise = saved.columns;
  quantize(call, format, x, matrix, of_x());
  show(call, of_x(), input_of(x), matrix, std::nullopt);
  return operand_of(format, Side::rowwise, matrix);
}

void Factors::activation_columns(const Call& call, const Input& x, const Saved& saved) const {
  QuantizedMatrix matrix = matrix_of(call, like(x));
  matrix.columnwise = saved.columns;
  quantize(call, *of_activation(Side::columnwise), x, matrix, of_x());
  show(call, of_x(), input_of(x), matrix, Side::columnwise);
}

Operand Factors::columns_of(const Call& call, const Input& x, const Saved& saved) const {
  const FormatId format = *of_activation(Side::columnwise);
  QuantizedMatrix matrix;
  matrix.matrix = {like(x).rows(), like(x).columns()};
  matrix.columnwise = saved.columns;
  matrix.rows_end = call.rows_end;
  if (!multiplies_activation(Side::columnwise)) {
    matrix.values = call.arena.temp(DType::bf16, {matrix.matrix.rows, matrix.matrix.columns});
    decode_one(call.stream, format, matrix, Side::columnwise);
    matrix.columnwise.data = matrix.values;
    matrix.columnwise.scales = {};
  }
  return operand_of(format, Side::columnwise, matrix);
}

bool Factors::draws() const {
  const auto takes = [](const Format& format) { return format && traits_of(*format).may_draw; };
  return treatment_.draws && (takes(treatment_.gradient.dgrad) || takes(treatment_.gradient.wgrad));
}

/// One copy of dy, made by a launch of its own.
Operand Factors::gradient_copy(const Call& call, const Tensor& dy, const QuantizedMatrix& of_dy, Side side) const {
  const Format& format = of_gradient(side);
  QuantizedMatrix matrix = of_dy;
  if (format) make(call, *format, matrix, side, this->of_dy(), multiplies_gradient(side));
  show(call, this->of_dy(), {}, matrix, side);
  return format ? operand_of(*format, side, matrix) : Operand(dy);
}

Factors::Gradient Factors::gradient(const Call& call, const OutputGradient& dy, bool biased, const Tensor& rows) const {
  const bool computed = !std::holds_alternative<Tensor>(dy);
  QuantizedMatrix matrix = matrix_of(call, like(dy));
  // mutation: not_finite_is_lost
  matrix.draws = {call.key.seed, rowwise_draws_, columnwise_draws_, call.key.step, call.first_token, rows};
  const Format& format = of_gradient(Side::rowwise);
  const bool multiplied = multiplies_gradient(Side::rowwise);
  const bool together =
      format && format == of_gradient(Side::columnwise) && multiplied == multiplies_gradient(Side::columnwise);
  if (!computed && !together) {
    const auto& values = std::get<Tensor>(dy);
    const Operand rowwise = gradient_copy(call, values, matrix, Side::rowwise);
    return {rowwise, gradient_copy(call, values, matrix, Side::columnwise), values};
  }
  if (biased && quantizes_in_one_pass(*format) && (computed || multiplied))
    matrix.column_sums = call.arena.temp(DType::f32, column_sums_shape(matrix.matrix));
  if (computed) {
    place(call.arena, *format, matrix, std::nullopt);
    quantize(call, *format, dy, matrix, of_dy());
  } else {
    make(call, *format, matrix, std::nullopt, of_dy(), multiplied);
  }
  show(call, of_dy(), input_of(dy), matrix, std::nullopt);
  return {operand_of(*format, Side::rowwise, matrix), operand_of(*format, Side::columnwise, matrix),
          computed || matrix.column_sums ? matrix.column_sums : std::get<Tensor>(dy)};
}

Operand Factors::weight(const Call& call, const Operand& held, Side side) const {
  return weights(call, {&held, 1}, side).front();
}

std::vector<Operand> Factors::weights(const Call& call, std::span<const Operand> held, Side side) const {
  const Format& format = of_weight(side);
  if (!format || held.front().codes) {
    show(call, side, held);
    return {held.begin(), held.end()};
  }
  const auto parts = static_cast<std::int64_t>(held.size());
  const Operand& first = held.front();
  QuantizedMatrix all;
  all.matrix = {first.rows(), first.columns()};
  all.members = first.members * parts;
  place(call.arena, *format, all, side);
  for (std::int64_t i = 0; i < parts; ++i) {
    const Operand& one = held[static_cast<std::size_t>(i)];
    QuantizedMatrix part = all;
    part.members = one.members;
    part.member_stride = one.members > 1 ? one.member_stride : 0;
    part.values = {one.data.data, DType::bf16, {one.members * one.rows(), one.columns()}};
    for (Copy* copy : {&part.rowwise, &part.columnwise})
      for (Tensor* t : {&copy->data, &copy->scales, &copy->amax})
        if (*t) *t = t->flat(i * t->elements() / parts, t->elements() / parts);
    quantize_one(call.stream, *format, part, Purpose::weight);
  }
  const Operand made = operand_of(*format, side, all);
  show(call, side, {&made, 1});
  return {made};
}

}  // namespace tessera
