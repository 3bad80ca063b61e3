#include "core/step/tensor_capture.hpp"

#include <fnmatch.h>

#include <algorithm>

#include "core/model/layers/copies.hpp"
#include "core/step/quantizer_statistics.hpp"
#include "kernels/activation/activation.hpp"

namespace tessera {
namespace {

constexpr const char* parts_of_copies[] = {"codes", "scales", "amax"};

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::string copy_name(const std::string& matrix, Purpose::Role role, Side side) {
  return matrix + "/" + name_of(role) + "_" + name_of(side);
}

/// The values of a factor; those that its quantizer computes on the way are computed in the arena.
Tensor values_of(Stream& stream, const MadeFactor& factor) {
  const formats::Matrix m = factor.matrix.matrix;
  if (std::holds_alternative<std::monostate>(factor.input)) return factor.matrix.values;
  const Tensor values = factor.arena.temp(DType::bf16, {m.rows, m.columns});
  if (const auto* x = std::get_if<Gelu>(&factor.input)) gelu_forward(stream, values, x->pre);
  if (const auto* x = std::get_if<GeluGradient>(&factor.input)) gelu_backward(stream, values, x->dy, x->pre);
  if (const auto* x = std::get_if<Swiglu>(&factor.input)) swiglu_forward(stream, values, x->gate_up);
  if (const auto* x = std::get_if<SwigluGradient>(&factor.input)) swiglu_backward(stream, values, x->dy, x->gate_up);
  return values;
}

/// Names of the tensors of a parameter.
std::vector<std::string> names_of(const ParamSpec& spec) {
  const std::string& matrix = spec.canonical.name;
  std::vector<std::string> names{matrix + "/weight", matrix + "/weight_gradient"};
  if (!is_matrix(spec.role) && spec.role != Role::head && spec.tied_to.empty()) return names;
  names.insert(names.end(), {matrix + "/activation", matrix + "/gradient"});
  const auto add = [&](Purpose::Role role, Side side, const Treatment::Format& format) {
    if (!format) return;
    const std::string copy = copy_name(matrix, role, side);
    names.push_back(copy + "/codes");
    if (traits_of(*format).scaled) names.push_back(copy + "/scales");
    if (traits_of(*format).tensor_amax) names.push_back(copy + "/amax");
  };
  using enum Purpose::Role;
  const Treatment& t = spec.treatment;
  add(weight, Side::rowwise, t.weight.forward);
  add(weight, Side::columnwise, t.weight.dgrad);
  add(activation, Side::rowwise, t.activation.forward);
  add(activation, Side::columnwise, t.activation.wgrad);
  add(gradient, Side::rowwise, t.gradient.dgrad);
  add(gradient, Side::columnwise, t.gradient.wgrad);
  return names;
}

}  // namespace

std::vector<std::string> patterns_of_nothing(std::vector<std::string> patterns, const ParamRegistry& registry) {
  for (const Dataset& dataset : registry.datasets())
    for (const std::string& name : names_of(registry[dataset.params.front()]))
      std::erase_if(patterns, [&](const std::string& pattern) { return matches(pattern, name); });
  return patterns;
}

bool TensorCapture::wants(const std::string& name) const {
  return std::ranges::any_of(wanted_, [&](const std::string& pattern) { return matches(pattern, name); });
}

bool TensorCapture::wants_copy(const std::string& copy) const {
  return std::ranges::any_of(parts_of_copies, [&](const char* part) { return wants(copy + "/" + part); });
}

void TensorCapture::begin(Device& device, const StepPlan& plan, Stream& stream, const StateDict& masters) {
  device_ = &device;
  plan_ = &plan;
  tensors_.clear();
  seen_.clear();
  take(stream, masters, "weight");
}

void TensorCapture::take(Stream& stream, const StateDict& state, const std::string& what) {
  for (const StateTensor& tensor : state.tensors) {
    const std::string name = tensor.name + "/" + what;
    if (tensor.slot != "model" || !wants(name)) continue;
    CapturedTensor& taken = tensors_[name];
    taken.shape = tensor.shape;
    taken.type = tensor.type;
    for (const StateRange& range : tensor.ranges) {
      std::string bytes(static_cast<std::size_t>(range.values.bytes()), '\0');
      device_->download(stream, bytes.data(), range.values);
      taken.ranges.push_back({range.first, std::move(bytes)});
    }
  }
}

void TensorCapture::take(Stream& stream, const std::string& name, std::int64_t index, std::int64_t count,
                         const Tensor& values, std::string_view format) {
  if (!values || !wants(name) || stream.dry()) return;
  CapturedTensor& taken = tensors_[name];
  std::vector<std::int64_t> dims = values.shape.dims();
  dims.insert(dims.begin(), count);
  taken.shape = Shape(dims);
  taken.type = values.type;
  taken.format = format;
  std::string bytes(static_cast<std::size_t>(values.bytes()), '\0');
  device_->download(stream, bytes.data(), values);
  taken.ranges.push_back({index * values.elements(), std::move(bytes)});  // mutation: micro_batches_in_one_place
}

void TensorCapture::take_copy(Stream& stream, const std::string& copy, std::int64_t index, std::int64_t count,
                              FormatId format, const Tensor& data, const Tensor& scales, const Tensor& amax) {
  const std::string_view name = traits_of(format).name;
  take(stream, copy + "/codes", index, count, data, name);
  take(stream, copy + "/scales", index, count, scales, name);
  take(stream, copy + "/amax", index, count, amax, name);
}

void TensorCapture::made(Stream& stream, const MadeFactor& factor) {
  const std::string name = factor.weight + "/" + name_of(factor.purpose.role),
                    copy = copy_name(factor.weight, factor.purpose.role, factor.side);
  const bool values = wants(name) && seen_.emplace(name, factor.first_token).second,
             codes = factor.format && wants_copy(copy) && seen_.emplace(copy, factor.first_token).second;
  if (!values && !codes) return;
  const Arena::Frame frame(factor.arena);
  const QuantizeLaunches launches = stream.library<QuantizeLaunches>();  // of the step
  const Tensor x = values_of(stream, factor);
  const std::int64_t index = factor.first_token / (sizes_.micro * sizes_.length), count = sizes_.micro_batches();
  if (values) take(stream, name, index, count, x);
  if (!codes) return;
  QuantizedMatrix matrix;
  matrix.matrix = factor.matrix.matrix;
  matrix.values = x;
  matrix.draws = factor.matrix.draws;
  place(factor.arena, *factor.format, matrix, factor.side);
  quantize_one(stream, *factor.format, matrix, factor.purpose);
  stream.library<QuantizeLaunches>() = launches;
  const Copy& made = factor.side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
  take_copy(stream, copy, index, count, *factor.format, made.data, made.scales, made.amax);
}

void TensorCapture::read(Stream& stream, const ReadWeight& weight) {
  const std::string copy = copy_name(weight.name, Purpose::Role::weight, weight.side);
  if (stream.dry() || plan_->ranks.world.rank != 0) return;  // every rank has them
  if (!wants_copy(copy) || !seen_.emplace(copy, 0).second) return;
  std::int64_t index = 0, count = 0;
  for (const Operand& operand : weight.operands) count += operand.members;
  for (const Operand& operand : weight.operands)
    for (std::int64_t e = 0; e < operand.members; ++e) {
      const Operand one = operand.member(e);
      if (one.codes)
        take_copy(stream, copy, index, count, one.codes->format, one.data, one.codes->scales, one.codes->amax);
      ++index;
    }
}

void TensorCapture::reduced(Stream& stream, const Reduced& gradients) {
  std::vector<BucketSlice> slices;
  for (BucketId b : plan_->layout.buckets().ids()) slices.push_back({b, gradients.shard(b)});
  StateDict state;
  state.add({"model", slices}, plan_->registry, plan_->layout, plan_->ranks);
  take(stream, state, "weight_gradient");
}

}  // namespace tessera
