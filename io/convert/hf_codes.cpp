#include "io/convert/hf_codes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/checkpoint/reader.hpp"
#include "io/convert/quantize_file.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// How a format's codes are called by loaders.
struct Layout {
  std::string_view format;  ///< here
  std::string_view name;    ///< compressed-tensors' format
  int bits;
  const char* strategy;
  std::int64_t group;          ///< elements of a row that share a scale; 0: not in rows
  bool quantized_activations;  ///< whether a loader may quantize them by itself, with scales of its own
};
constexpr Layout layouts[] = {
    {"fp8_block", "float-quantized", 8, "block", 0, true},
    {"fp8_tensor", "float-quantized", 8, "tensor", 0, true},
    {"mxfp8", "mxfp8-quantized", 8, "group", 32, true},
    {"mxfp8_2d", "mxfp8-quantized", 8, "group", 32, true},
    {"mxfp4", "mxfp4-pack-quantized", 4, "group", 32, false},
    {"mxfp4_2d", "mxfp4-pack-quantized", 4, "group", 32, false},
    {"nvfp4", "nvfp4-pack-quantized", 4, "tensor_group", 16, false},
    {"nvfp4_46", "nvfp4-pack-quantized", 4, "tensor_group", 16, false},
};
const Layout* layout_of(FormatId format) {
  const auto found = std::ranges::find(layouts, traits_of(format).name, &Layout::format);
  return found == std::end(layouts) ? nullptr : found;
}

std::string module_of(const std::string& weight) {
  constexpr std::string_view kind = ".weight";
  return weight.ends_with(kind) ? weight.substr(0, weight.size() - kind.size()) : weight;
}

/// Rows whose codes share scales, or must lie in one tensor for another reason.
std::int64_t rows_of_a_block(FormatId format) { return std::max<std::int64_t>(1, traits_of(format).block.rows); }

/// The row of a member at which a piece begins, and the member.
struct MemberRow {
  std::int64_t member, row;
};
MemberRow row_of(const StateTensor& tensor, const ForeignPiece& piece) {
  const std::int64_t width = tensor.shape[-1], rows = tensor.shape[-2], row = piece.first / width;
  return {row / rows, row % rows};
}

/// Why a piece of a weight cannot be written as codes of a format; empty if it can.
std::string obstacle(FormatId format, const StateTensor& tensor, const ForeignPiece& piece, CodesLayout layout) {
  const FormatTraits traits = traits_of(format);
  const Layout* const known = layout_of(format);
  if (!known) return fmt::format("no loader knows {}", traits.name);
  if (layout == CodesLayout::modelopt && known->group != 16)
    return fmt::format("--layout modelopt is for nvfp4 and nvfp4_46, and it is {}", traits.name);
  if (piece.orientation == Orientation::transposed) return "its family stores it transposed, and its codes are not";
  const std::int64_t unit = traits.scaled ? rows_of_a_block(format) : 1, row = row_of(tensor, piece).row;
  if (row % unit != 0 || (row + piece.shape[0] < tensor.shape[-2] && piece.shape[0] % unit != 0))
    return fmt::format("its rows {} to {} of {} begin or end within a block of {}, {} rows high", row,
                       row + piece.shape[0], tensor.name, traits.name, unit);
  return "";
}

}  // namespace

HfCodes::HfCodes(const CodesOptions& options, Family family, const ModelConfig& model,
                 const std::vector<StateTensor>& tensors, const fs::path& work)
    : layout_(options.layout) {
  const Checkpoint step(options.step);
  weights_ = trained_weights(step);
  Problems problems;
  if (weights_.empty())
    problems.add(Exit::file, step.folder().string() + ": its run multiplies no weight as codes: leave --codes out");
  for (const StateTensor& tensor : tensors) {
    if (!holds(tensor)) continue;
    const FormatId format = weights_.at(tensor.name).format;
    for (const ForeignPiece& piece : pieces_in(family, model, tensor)) {
      coded_[std::string(traits_of(format).name)].push_back(module_of(piece.name));
      if (const std::string why = obstacle(format, tensor, piece, layout_); !why.empty())
        problems.add(Exit::file, fmt::format("{}: {}: {}", step.folder().string(), piece.name, why));
    }
  }
  problems.raise();
  QuantizeFileOptions file;
  file.in = step.folder() / model_file;
  file.out = work;
  file.formats = weights_;
  quantize_file(file);
  index_ = hdf5::File::open(work);
  file_.emplace(work, PosixFile::Mode::read);
}

HfCodes::Group HfCodes::group_of(const StateTensor& tensor, std::int64_t member) const {
  const std::string stack = "model/" + tensor.name;
  const bool stacked = index_->has(stack + "/rowwise_data");
  const std::string path = stacked ? stack : expert_path(stack, member);
  const std::int64_t at = stacked ? member : 0;
  const auto array = [&](const std::string& name, std::int64_t& begin, std::int64_t& row) {
    if (!index_->has(path + name)) return;
    const hdf5::Dataset data = index_->dataset(path + name);
    row = data.shape[-1] * size_of(data.type);
    begin = data.offset + at * data.shape[-2] * row;
  };
  Group group{};
  array("/rowwise_data", group.codes, group.code_row);
  array("/rowwise_scales", group.scales, group.scale_row);
  file_->read(index_->offset_of(path + "/amax") + at * 4, &group.amax, 4);
  return group;
}

std::vector<CodedArray> HfCodes::arrays_of(const StateTensor& tensor, const ForeignPiece& piece) const {
  const FormatId format = weights_.at(tensor.name).format;
  const FormatTraits traits = traits_of(format);
  const auto [member, row] = row_of(tensor, piece);
  const Group group = group_of(tensor, member);
  const std::int64_t rows = piece.shape[0], columns = piece.shape[1];
  const bool packed = traits.bits == 4, two_levels = traits.scaled && traits.tensor_amax,
             modelopt = layout_ == CodesLayout::modelopt;
  const std::string& weight = piece.name;
  std::vector<CodedArray> arrays;
  const std::int64_t width = columns * traits.bits / 8;
  arrays.push_back({{packed && !modelopt ? weight + "_packed" : weight, {rows, width}, DType::u8, 0, "",
                     packed ? Encoding::plain : Encoding::e4m3},
                    group.codes + row * group.code_row, group.code_row, width, rows, 0});
  const auto number = [&](const char* suffix, Shape shape, float value) {
    arrays.push_back({{weight + suffix, shape, DType::f32, 0, ""}, 0, 0, 0, 0, value});
  };
  if (!traits.scaled) {
    number("_scale", {1}, formats::Fp8Tensor::tensor_step(group.amax));
    return arrays;
  }
  const bool blocks = traits.scale_type == DType::f32;  // a row of scales for each row of blocks
  const std::int64_t unit = blocks ? traits.block.rows : 1,
                     across = (columns + traits.block.columns - 1) / traits.block.columns;
  const std::int64_t down = (rows + unit - 1) / unit, bytes = across * size_of(traits.scale_type);
  arrays.push_back({{weight + (blocks && deepseek() ? "_scale_inv" : "_scale"), {down, across}, traits.scale_type, 0,
                     "", two_levels ? Encoding::e4m3 : Encoding::plain},
                    group.scales + row / unit * group.scale_row,  // mutation: exported_scales_of_a_neighbour
                    group.scale_row, bytes, down, 0});
  if (two_levels)
    visit_format(format, [&]<class F>() {
      if (modelopt) return number("_scale_2", {}, F::tensor_step(group.amax));
      number("_global_scale", {1}, F::tensor_scale(group.amax).encode);
    });
  return arrays;
}

void HfCodes::copy(const CodedArray& array, SafetensorsWriter& to, std::size_t index) const {
  if (array.rows == 0) return to.write(index, 0, &array.number, sizeof array.number);
  constexpr std::int64_t most = std::int64_t{1} << 22;  // bytes held at a time
  const std::int64_t some = std::max<std::int64_t>(1, most / array.stride);
  std::vector<std::byte> read, tight;
  for (std::int64_t first = 0; first < array.rows; first += some) {
    const std::int64_t rows = std::min(some, array.rows - first), span = (rows - 1) * array.stride + array.row;
    read.resize(static_cast<std::size_t>(span));
    file_->read(array.from + first * array.stride, read.data(), span);
    tight.clear();
    for (std::int64_t r = 0; r < rows; ++r)
      tight.insert(tight.end(), read.begin() + r * array.stride, read.begin() + r * array.stride + array.row);
    to.write(index, first * array.row, tight.data(), std::ssize(tight));
  }
}

namespace {

Json scheme(const Layout& layout) {
  Json json = {{"num_bits", layout.bits}, {"type", "float"}, {"symmetric", true}, {"strategy", layout.strategy}};
  if (layout.group > 0) json["group_size"] = layout.group;
  if (layout.strategy == std::string_view("block")) json["block_structure"] = {128, 128};
  if (layout.group == 32) json["scale_dtype"] = "torch.uint8";
  if (layout.group == 16) json["scale_dtype"] = "torch.float8_e4m3fn";
  return json;
}

Json group_json(const Layout& layout, const std::vector<std::string>& modules) {
  Json weights = scheme(layout), json = {{"targets", modules}, {"format", layout.name}};
  weights["dynamic"] = false;
  json["weights"] = weights;
  json["input_activations"] = nullptr;
  if (layout.quantized_activations) {
    Json inputs = scheme(layout);
    if (inputs["strategy"] == "block") {  // rows of a block's width
      inputs.erase("block_structure");
      inputs.update({{"strategy", "group"}, {"group_size", 128}});
    }
    inputs["dynamic"] = true;
    json["input_activations"] = inputs;
  }
  return json;
}

}  // namespace

std::string HfCodes::formats_text() const {
  std::string text;
  for (const auto& [format, modules] : coded_) text += (text.empty() ? "" : ", ") + format;
  return text;
}

Json HfCodes::config(const std::vector<std::string>& plain) const {
  if (deepseek())
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", plain}};
  if (layout_ == CodesLayout::modelopt)
    return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 16}, {"ignore", plain}};
  Json groups = Json::object();
  for (const auto& [format, modules] : coded_) {
    const Layout& layout = *std::ranges::find(layouts, format, &Layout::format);
    groups[fmt::format("group_{}", groups.size())] = group_json(layout, modules);
  }
  const std::string_view format =
      coded_.size() > 1 ? "mixed-precision" : std::ranges::find(layouts, coded_.begin()->first, &Layout::format)->name;
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"config_groups", groups},
          {"ignore", plain},
          {"kv_cache_scheme", nullptr}};
}

std::string HfCodes::modelopt_text(const std::vector<std::string>& plain) const {
  if (layout_ != CodesLayout::modelopt) return "";
  const Json json = {{"producer", {{"name", "tessera"}}},
                     {"quantization",
                      {{"quant_algo", "NVFP4"},
                       {"kv_cache_quant_algo", nullptr},
                       {"group_size", 16},
                       {"exclude_modules", plain}}}};
  return json.dump(2) + "\n";
}

}  // namespace tessera
