#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <climits>
#include <optional>

#include "app/cli/build.hpp"
#include "app/cli/threads.hpp"
#include "app/verbs/verbs.hpp"
#include "io/convert/hf_folder.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

std::string this_host() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace

int run_checkpoint_convert(const CheckpointConvertOptions& options) {
  if (options.target == Target::safetensors && options.experts)
    throw Error(Exit::usage, "--experts: safetensors hold experts one by one; the option is for --to tessera");
  if (options.target != Target::safetensors && options.shard_bytes)
    throw Error(Exit::usage, "--max-shard: only safetensors are cut into shards; the option is for --to safetensors");
  if (options.target != Target::safetensors && options.codes)
    throw Error(Exit::usage, "--codes: only safetensors hold codes; the option is for --to safetensors");
  if (options.codes && (options.type || !options.upcycling.empty() || is_hf_folder(options.from)))
    throw Error(Exit::usage, "--codes: the codes are those of a run's checkpoint, and all else is bf16: leave --dtype "
                             "and --upcycle out, and give a step or a run");
  if (options.layout && !options.codes) throw Error(Exit::usage, "--layout: is for --codes");
  for (const auto& [name, path] : {std::pair("SRC", options.from), std::pair("DST", options.to)})
    if (path.empty()) throw Error(Exit::usage, std::string(name) + ": is empty");
  ConvertOptions convert;
  convert.from = chosen_step(options.from, options.step);
  convert.to = options.to;
  convert.experts = options.experts;
  convert.type = options.type;
  convert.extent = options.extent;
  if (options.codes) convert.codes = options.layout.value_or(CodesLayout::compressed);
  if (!options.upcycling.empty()) convert.upcycling = read_upcycling(options.upcycling);
  convert.target = options.target;
  convert.shard_bytes = options.shard_bytes.value_or(convert.shard_bytes);
  const Build build = this_build();
  convert.program.version = build.version;
  convert.program.git_sha = build.git_sha;
  convert.program.libraries = libraries_text(build);
  convert.program.command_line = fmt::format("{}", fmt::join(options.command_line, " "));
  convert.program.hosts = this_host();
  std::optional<Runtime> runtime;  // quantizers make the codes
  if (options.codes) runtime.emplace(static_cast<int>(host_threads(1)));
  const ConvertReport report = convert_checkpoint(convert);
  for (const std::string& line : report.told) fmt::print(stderr, "{}\n", line);
  fmt::print("{}\n", options.format == Format::json ? report.json() : report.text());
  return 0;
}

}  // namespace tessera
