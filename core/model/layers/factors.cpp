#include "core/model/layers/factors.hpp"

#include "core/model/factor_observer.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera {
namespace {

std::uint64_t draw_name(const ParamSpec& weight, const char* side) {
  return fnv1a64("sr:" + weight.canonical.name + ":" + side);
}

/// A place for one copy of `members` matrices; allocate(type, shape) is an arena's keep() or temp().
template <class Allocate>
Copy place_copy(FormatId format, Side side, formats::Matrix m, std::int64_t members, const Allocate& allocate) {
  return visit_format(format, [&]<class F>() {
    const auto all = [&](const Shape& one) { return Shape{members * one[0], one[1]}; };
    Copy copy;
    copy.data = allocate(dtype_of<typename F::Element::Storage>, all(formats::data_shape<F>(side, m)));
    if (F::scaled) copy.scales = allocate(dtype_of<typename F::Scale>, all(formats::scale_shape<F>(side, m)));
    if (F::tensor_amax) copy.amax = allocate(DType::f32, {members});
    return copy;
  });
}

/// A place for the bf16 values of one copy of one matrix.
Copy place_values(Arena& arena, FormatId format, formats::Matrix m) {
  Copy copy;
  copy.data = arena.temp(DType::bf16, {m.rows, m.columns});
  if (visit_format(format, [&]<class F>() { return F::tensor_amax; })) copy.amax = arena.temp(DType::f32, {1});
  return copy;
}

/// Places for one copy, or (no side) both; copies that share their data are made together.
void place(Arena& arena, FormatId format, QuantizedMatrix& matrix, std::optional<Side> side) {
  const auto temp = [&](DType type, const Shape& shape) { return arena.temp(type, shape); };
  const bool shared = traits_of(format).columnwise == formats::Columnwise::shared;
  if (side != Side::columnwise || shared)
    matrix.rowwise = place_copy(format, Side::rowwise, matrix.matrix, matrix.members, temp);
  if (side == Side::rowwise) return;
  if (!shared) {
    matrix.columnwise = place_copy(format, Side::columnwise, matrix.matrix, matrix.members, temp);
    return;
  }
  matrix.columnwise.data = matrix.rowwise.data;
  matrix.columnwise.scales = visit_format(format, [&]<class F>() {
    const Shape one = formats::scale_shape<F>(Side::columnwise, matrix.matrix);
    return arena.temp(dtype_of<typename F::Scale>, {matrix.members * one[0], one[1]});
  });
}

/// What products read of a copy.
Operand operand_of(FormatId format, Side side, const QuantizedMatrix& matrix) {
  const Copy& copy = side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
  const auto one = [&](Tensor all) {
    if (all.shape.rank() > 0) all.shape = {all.rows() / matrix.members, all.columns()};
    return all;
  };
  return {one(copy.data), Codes{format, side, one(copy.scales), copy.amax}, matrix.members, matrix.matrix.elements()};
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
  matrix.not_finite = call.not_finite();
  return matrix;
}

/// Makes one copy, or both if `side` is empty: codes if tensor cores multiply them, else fake-quantized bf16 values.
void make(const Call& call, FormatId format, QuantizedMatrix& matrix, std::optional<Side> side, Purpose purpose) {
  if (gemm::multiplies_codes(format)) {
    place(call.arena, format, matrix, side);
    return quantize_one(call.stream, format, matrix, purpose);
  }
  if (side != Side::columnwise) matrix.rowwise = place_values(call.arena, format, matrix.matrix);
  if (side != Side::rowwise) matrix.columnwise = place_values(call.arena, format, matrix.matrix);
  make_factors(call.stream, format, matrix, purpose);
}

}  // namespace

Factors::Factors(const ParamSpec& weight, const Recipe& recipe)
    : weight_(weight.canonical.name),
      format_(weight.format.codes),
      rowwise_draws_(draw_name(weight, "row")),
      columnwise_draws_(draw_name(weight, "col")) {
  if (!format_) return;
  activation_ = recipe.activation.value();
  gradient_ = recipe.gradient.value();
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
  if (!call.observer) return;
  const FormatId format = purpose == Purpose::activation ? *activation_ : *gradient_;
  for (const Side one : {Side::rowwise, Side::columnwise})
    if (!side || side == one)
      call.observer->made(call.stream,
                          {weight_, format, purpose, one, matrix, input, call.row_tokens, call.first_token});
}

void Factors::quantize_activation(const Call& call, const Input& x, const QuantizedMatrix& matrix) const {
  quantize(call, *activation_, x, matrix, Purpose::activation);
}

Operand Factors::activation(const Call& call, const Input& x, Side side) const {
  if (!coded()) return std::get<Tensor>(x);
  QuantizedMatrix matrix = matrix_of(call, like(x));
  if (std::holds_alternative<Tensor>(x)) {
    make(call, *activation_, matrix, side, Purpose::activation);
  } else {
    place(call.arena, *activation_, matrix, side);
    quantize_activation(call, x, matrix);
  }
  show(call, Purpose::activation, input_of(x), matrix, side);
  return operand_of(*activation_, side, matrix);
}

Copy Factors::place_columns(Arena& arena, formats::Matrix x) const {
  if (!coded() || !gemm::multiplies_codes(*activation_)) return {};
  const bool apart = traits_of(*activation_).columnwise != formats::Columnwise::shared;
  const bool takes = visit_format(*activation_, [&]<class F>() { return formats::takes<F>(Side::columnwise, x); });
  if (!apart || !takes) return {};
  return place_copy(*activation_, Side::columnwise, x, 1,
                    [&](DType type, const Shape& shape) { return arena.keep(type, shape); });
}

Operand Factors::activation(const Call& call, const Input& x, const Copy& columns) const {
  QuantizedMatrix matrix = matrix_of(call, like(x));
  place(call.arena, *activation_, matrix, Side::rowwise);
  matrix.columnwise = columns;
  quantize_activation(call, x, matrix);
  show(call, Purpose::activation, input_of(x), matrix, std::nullopt);
  return operand_of(*activation_, Side::rowwise, matrix);
}

void Factors::activation_columns(const Call& call, const Input& x, const Copy& columns) const {
  QuantizedMatrix matrix = matrix_of(call, like(x));
  matrix.columnwise = columns;
  quantize_activation(call, x, matrix);
  show(call, Purpose::activation, input_of(x), matrix, Side::columnwise);
}

Operand Factors::columns_of(const Input& x, const Copy& columns) const {
  QuantizedMatrix matrix;
  matrix.matrix = {like(x).rows(), like(x).columns()};
  matrix.columnwise = columns;
  return operand_of(*activation_, Side::columnwise, matrix);
}

bool Factors::draws() const {
  return gradient_ && visit_format(*gradient_, [&]<class F>() { return F::hadamard; });
}

Factors::Gradient Factors::gradient(const Call& call, const OutputGradient& dy, bool biased, const Tensor& rows) const {
  if (!coded()) return {std::get<Tensor>(dy), std::get<Tensor>(dy), std::get<Tensor>(dy)};
  const bool computed = !std::holds_alternative<Tensor>(dy);
  QuantizedMatrix matrix = matrix_of(call, like(dy));
  matrix.draws = {call.key.seed, rowwise_draws_, columnwise_draws_, call.key.step, call.first_token, rows};
  if (biased && quantizes_in_one_pass(*gradient_) && (computed || gemm::multiplies_codes(*gradient_)))
    matrix.column_sums = call.arena.temp(DType::f32, column_sums_shape(matrix.matrix));
  if (computed) {
    place(call.arena, *gradient_, matrix, std::nullopt);
    quantize(call, *gradient_, dy, matrix, Purpose::gradient);
  } else {
    make(call, *gradient_, matrix, std::nullopt, Purpose::gradient);
  }
  show(call, Purpose::gradient, input_of(dy), matrix, std::nullopt);
  return {operand_of(*gradient_, Side::rowwise, matrix), operand_of(*gradient_, Side::columnwise, matrix),
          computed || matrix.column_sums ? matrix.column_sums : std::get<Tensor>(dy)};
}

Operand Factors::weight(const Call& call, const Operand& held, Side side) const {
  return weights(call, {&held, 1}, side).front();
}

std::vector<Operand> Factors::weights(const Call& call, std::span<const Operand> held, Side side) const {
  if (!coded() || held.front().codes) return {held.begin(), held.end()};
  const auto parts = static_cast<std::int64_t>(held.size());
  const Operand& first = held.front();
  QuantizedMatrix all;
  all.matrix = {first.rows(), first.columns()};
  all.members = first.members * parts;
  place(call.arena, *format_, all, side);
  for (std::int64_t i = 0; i < parts; ++i) {
    const Operand& one = held[static_cast<std::size_t>(i)];
    QuantizedMatrix part = all;
    part.members = one.members;
    part.member_stride = one.members > 1 ? one.member_stride : 0;
    part.values = {one.data.data, DType::bf16, {one.members * one.rows(), one.columns()}};
    for (Copy* copy : {&part.rowwise, &part.columnwise})
      for (Tensor* t : {&copy->data, &copy->scales, &copy->amax})
        if (*t) *t = t->flat(i * t->elements() / parts, t->elements() / parts);
    quantize_one(call.stream, *format_, part, Purpose::weight);
  }
  return {operand_of(*format_, side, all)};
}

}  // namespace tessera
