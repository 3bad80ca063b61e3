#include "io/convert/hf_decoded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/formats/e8m0.hpp"
#include "kernels/formats/minifloat.hpp"

namespace tessera {
namespace {

constexpr std::int64_t block = 128;

bool is_e4m3(const SourceTensor& t) { return t.encoding == Encoding::e4m3; }
bool is_bytes(const SourceTensor& t) { return t.encoding == Encoding::plain && t.type == DType::u8; }
bool is_fp32(const SourceTensor& t) {
  return t.encoding == Encoding::plain && t.type == DType::f32 && t.unreadable.empty();
}

}  // namespace

std::optional<CodedWeight> CodedWeight::find(const std::string& name, const Shape& shape, const FindTensor& find,
                                             std::vector<std::string>& why) {
  const auto packed = find(name + "_packed"), plain = find(name);
  const auto codes = packed ? packed : plain;
  if (shape.rank() != 2 || !codes || (!is_e4m3(codes->tensor) && !is_bytes(codes->tensor))) return std::nullopt;
  CodedWeight weight;
  weight.codes_ = *codes;
  weight.packed_ = is_bytes(codes->tensor);
  weight.columns_ = shape[1];
  weight.names_ = {codes->tensor.name};
  const auto take = [&](const char* suffix) {
    const auto found = find(name + suffix);
    if (found) weight.names_.push_back(found->tensor.name);
    return found;
  };
  const auto inverse = take("_scale_inv"), scale = inverse ? inverse : take("_scale"), divisor = take("_global_scale"),
             factor = take("_scale_2");
  const auto refuse = [&](const std::string& what) {
    why.push_back(fmt::format("{}: {}", name, what));
    return weight;
  };
  if (!scale) return refuse("its elements are codes, and neither _scale nor _scale_inv is beside it");
  const SourceTensor& steps = scale->tensor;
  weight.scales_ = *scale;
  const std::int64_t rows = shape[0], columns = shape[1];
  Shape wanted{rows, columns / 16};
  if (const auto& whole = divisor ? divisor : factor; whole && weight.packed_ && is_e4m3(steps)) {
    weight.step_ = divisor ? Step::divided : Step::multiplied;
    if (!is_fp32(whole->tensor) || whole->tensor.shape.elements() != 1)
      return refuse(whole->tensor.name + " is no single fp32 number");
    whole->file->read(whole->tensor.offset, &weight.number_, sizeof weight.number_);
  } else if (is_bytes(steps)) {
    weight.step_ = Step::e8m0;
    wanted = {rows, columns / 32};
  } else if (!weight.packed_ && is_fp32(steps) && steps.shape.elements() == 1 && !inverse && steps.shape.rank() < 2) {
    weight.step_ = Step::tensor;
    wanted = steps.shape;
    scale->file->read(steps.offset, &weight.number_, sizeof weight.number_);
  } else if (!weight.packed_ && is_fp32(steps)) {
    weight.step_ = Step::block;
    wanted = {(rows + block - 1) / block, (columns + block - 1) / block};
  } else {
    return refuse(steps.name + " is of no type that the layouts of DeepSeek, compressed-tensors (fp8, mxfp8, mxfp4, "
                               "nvfp4) and Model Optimizer (nvfp4) have");
  }
  if (weight.step_ != Step::block && columns % weight.width() != 0)
    return refuse(fmt::format("its {} columns are no multiple of {}", columns, weight.width()));
  const Shape stored = weight.packed_ ? Shape{rows, columns / 2} : shape;
  for (const auto& [tensor, is] : {std::pair(&codes->tensor, stored), std::pair(&steps, wanted)})
    if (tensor->shape != is)
      return refuse(fmt::format("{} is {}, and {} belongs here", tensor->name, tensor->shape.text(), is.text()));
  return weight;
}

std::int64_t CodedWeight::width() const {
  switch (step_) {
    case Step::block:
      return block;
    case Step::e8m0:
      return 32;
    case Step::divided:
    case Step::multiplied:
      return 16;
    case Step::tensor:
      return columns_;
  }
  return columns_;
}

float CodedWeight::step_of(const std::byte* scales, std::int64_t group) const {
  const auto code = [&] { return static_cast<std::uint32_t>(scales[group]); };
  float number = number_;
  switch (step_) {
    case Step::block:
      std::memcpy(&number, scales + group * std::int64_t{sizeof number}, sizeof number);
      return number;
    case Step::e8m0:
      return formats::E8M0::decode(code());
    case Step::divided:
      return formats::E4M3::decode(code()) / number_;
    case Step::multiplied:
      return formats::E4M3::decode(code()) * number_;
    case Step::tensor:
      return number_;
  }
  return number_;
}

void CodedWeight::read(std::int64_t first, std::int64_t count, float* to) const {
  const std::int64_t each = packed_ ? 2 : 1, line = columns_ / each, height = step_ == Step::block ? block : 1;
  const SourceTensor& steps = scales_.tensor;
  const std::int64_t step_line = step_ == Step::tensor ? 0 : steps.shape[-1] * size_of(steps.type);
  std::vector<std::byte> codes(static_cast<std::size_t>(line)), scales(static_cast<std::size_t>(step_line));
  std::int64_t held = -1;  // row of scales
  for (std::int64_t row = first / columns_, column = first % columns_; count > 0; ++row, column = 0) {
    const std::int64_t some = std::min(count, columns_ - column);
    codes_.file->read(codes_.tensor.offset + row * line, codes.data(), line);
    if (step_line > 0 && std::exchange(held, row / height) != row / height)
      scales_.file->read(steps.offset + held * step_line, scales.data(), step_line);
    for (std::int64_t c = column; c < column + some; ++c) {
      const auto byte = static_cast<std::uint32_t>(codes[static_cast<std::size_t>(c / each)]);
      const float value = packed_ ? formats::E2M1::decode(byte >> c % 2 * 4 & 15u) : formats::E4M3::decode(byte);
      *to++ = value * step_of(scales.data(), c / width());
    }
    count -= some;
  }
}

}  // namespace tessera
