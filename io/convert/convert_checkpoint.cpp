#include "io/convert/convert_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/optim/average.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/convert/hf_companions.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/files/json_text.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<ModelReader> source_of(const ConvertOptions& options) {
  if (is_hf_folder(options.from) && options.extent == Extent::averages)
    throw Error(Exit::file, options.from.string() + ": a Hugging Face folder holds no averages beside its weights");
  if (is_hf_folder(options.from)) return read_hf_folder(options.from);
  const bool weights = options.extent == Extent::all && (options.target == Target::safetensors || options.upcycling);
  return read_checkpoint(find_weights(options.from), weights ? Extent::weights : options.extent);
}

/// Facts of the model to write: the source's, with the layout and types of `options` and this program as origin.
ModelFacts facts_of(const ConvertOptions& options, const ModelFacts& source) {
  ModelFacts facts = source;
  Origin& origin = facts.origin;
  if (is_hf_folder(options.from)) origin.companions = hf_companions(options.from);
  origin.version = options.program.version;
  origin.git_sha = options.program.git_sha;
  origin.libraries = options.program.libraries;
  origin.command_line = options.program.command_line;
  origin.hosts = options.program.hosts;
  origin.experts = options.experts.value_or(origin.experts);
  for (StateTensor& tensor : facts.tensors)
    if (tensor.slot == "model" && !is_counted(tensor.role))
      tensor.type = options.codes ? DType::bf16
                                  : options.type.value_or(options.target == Target::safetensors ? tensor.type
                                                                                                : DType::f32);
  return facts;
}

/// Whether the source holds moving averages, which its run has evaluated and this conversion leaves out.
bool leaves_averages(const ConvertOptions& options) {
  if (options.extent != Extent::all || is_hf_folder(options.from)) return false;
  const Checkpoint source(find_checkpoint(options.from));
  return std::ranges::find(source.tensors(), Average::slot, &StoredTensor::slot) != source.tensors().end();
}

/// Lines for the user: what the source tells, and what a folder for other programs lacks.
std::vector<std::string> told_of(const ConvertOptions& options, const ModelFacts& facts) {
  std::vector<std::string> lines;
  for (const std::string& line : {facts.told, left_behind(options.from)})
    if (!line.empty()) lines.push_back(line);
  if (options.target == Target::safetensors && leaves_averages(options))  // mutation: averages_left_out_unsaid
    lines.push_back(options.from.string() + ": holds moving averages too (optimizer.ema), of which evaluations are; "
                                            "here are the weights, and with --ema the averages");
  if (options.target == Target::tessera || facts.origin.companions.contains(tokenizer_file)) return lines;
  const std::string to = options.to.string();
  if (facts.data == DataKind::text)
    lines.push_back(to + ": has no tokenizer, since this model's tokens are the bytes of a text: AutoTokenizer finds "
                         "none; give transformers the bytes as ids");
  else
    lines.push_back(fmt::format("{}: has no tokenizer, since the source has no {}", to, tokenizer_file));
  return lines;
}

std::unique_ptr<ModelWriter> target_of(const ConvertOptions& options, const ModelFacts& facts) {
  if (options.target == Target::safetensors) {
    std::optional<CodesOptions> codes;
    if (options.codes) codes = {find_checkpoint(options.from), *options.codes};
    return write_hf_folder(options.to, facts, options.shard_bytes, codes);
  }
  return write_checkpoint(options.to, facts);
}

/// Elements of one tensor that are not finite, as they were read and as they are to be written.
struct NonFinite {
  std::uint64_t read = 0, written = 0;

  /// Throws Error{numerical} if any is to be written, in whatever format, as a run's save does.
  void refuse(const ConvertOptions& options, const StateTensor& to) const {
    if (written == 0) return;
    std::string remedy;
    if (read == 0)
      remedy = fmt::format(": {} has numbers there that {} cannot express; {}", options.from.string(),
                           name_of(to.type), options.codes ? "leave --codes out" : "give --dtype fp32");
    throw Error(Exit::numerical, fmt::format("{} is refused: {} of the {} elements of {} are not finite in {}{}",
                                             options.to.string(), written, to.shape.elements(), to.path(),
                                             to.type == DType::f32 ? "fp32" : name_of(to.type), remedy));
  }
};

/// Copies a tensor in blocks from one model to another, each in its type.
void copy_tensor(const ConvertOptions& options, ModelReader& source, ModelWriter& target, std::size_t index,
                 const StateTensor& described) {
  const DType from = source.facts().tensors[index].type, to = described.type;
  const std::int64_t elements = described.shape.elements();
  std::vector<std::byte> read, written;
  NonFinite wrong;
  for (std::int64_t first = 0; first < elements; first += options.block_elements) {
    const std::int64_t count = std::min(options.block_elements, elements - first);
    read.resize(static_cast<std::size_t>(count * size_of(from)));
    written.resize(static_cast<std::size_t>(count * size_of(to)));
    source.read(index, first, count, read.data());
    convert_elements(written.data(), to, read.data(), from, count);
    wrong.read += non_finite(read.data(), from, count);
    wrong.written += non_finite(written.data(), to, count);
    target.write(index, first, count, written.data());
  }
  source.finish(index);
  wrong.refuse(options, described);
}

}  // namespace

ConvertReport convert_checkpoint(const ConvertOptions& options) {
  std::unique_ptr<ModelReader> source = source_of(options);
  if (options.upcycling) source = upcycled(std::move(source), *options.upcycling);
  const ModelFacts facts = facts_of(options, source->facts());
  const std::unique_ptr<ModelWriter> target = target_of(options, facts);
  ConvertReport report;
  report.from = options.from;
  report.to = options.to;
  report.target = options.target;
  report.step = facts.counters.step;
  report.tensors = std::ssize(facts.tensors);
  report.experts = facts.origin.experts;
  report.told = told_of(options, facts);
  for (std::size_t i = 0; i < facts.tensors.size(); ++i) {
    copy_tensor(options, *source, *target, i, facts.tensors[i]);
    const std::int64_t elements = facts.tensors[i].shape.elements();
    report.elements += elements;
    report.bytes += elements * size_of(facts.tensors[i].type);
    if (facts.tensors[i].slot == "model") report.type = facts.tensors[i].type;
  }
  report.content_digest = target->commit();
  return report;
}

std::string ConvertReport::json() const {
  nlohmann::ordered_json json = {{"source", from.string()},
                                 {"destination", to.string()},
                                 {"to", name_of(target)},
                                 {"step", step},
                                 {"tensors", tensors},
                                 {"elements", elements},
                                 {"bytes", bytes},
                                 {"dtype", type == DType::f32 ? "fp32" : name_of(type)},
                                 {"expert_layout", nullptr},
                                 {"content_digest", nullptr}};
  if (target == Target::tessera) json["expert_layout"] = name_of(experts);
  if (content_digest) json["content_digest"] = *content_digest;
  return json_text(json);
}

std::string ConvertReport::text() const {
  return fmt::format("{} -> {}: step {}, {}, {}, {}{}", from.string(), to.string(), step,
                     counted(tensors, "tensor"), counted(elements, "element"), bytes_text(bytes),
                     content_digest ? ", content digest " + *content_digest : "");
}

}  // namespace tessera
