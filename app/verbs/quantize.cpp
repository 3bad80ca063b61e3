#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "app/cli/threads.hpp"
#include "app/verbs/verbs.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/convert/quantize_file.hpp"
#include "io/files/access.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {

namespace {

/// The weights that the run of a step holds as codes.
TrainedWeights trained_in(const Checkpoint& step) {
  TrainedWeights weights = trained_weights(step);
  if (weights.empty())
    throw Error(Exit::file, fmt::format("{}: its run holds no weight as codes; --format quantizes to a format of your "
                                        "choice",
                                        step.folder().string()));
  return weights;
}

}  // namespace

int run_quantize(const QuantizeOptions& options) {
  for (const auto& [name, path] : {std::pair("IN", options.in), std::pair("--out", options.out)})
    if (path.empty()) throw Error(Exit::usage, std::string(name) + ": is empty");
  const Runtime runtime(static_cast<int>(host_threads(1)));
  // A run or a step stands for its model.h5, as with the other verbs.
  std::optional<Checkpoint> step;
  if (entry_at(options.in) == Entry::folder && !is_hf_folder(options.in)) step.emplace(find_checkpoint(options.in));
  QuantizeFileOptions file;
  file.in = step ? step->folder() / model_file : std::filesystem::path(options.in);
  file.out = options.out;
  file.tensors = options.tensors;
  file.precision = options.precision;
  if (options.format) {
    file.formats = *options.format;
  } else {
    if (!step)
      throw Error(Exit::usage, fmt::format("--format: is missing: {} is no run or step, whose weights have formats of "
                                           "their own",
                                           options.in));
    if (options.precision == Precision::as_given)
      throw Error(Exit::usage, "--no-bf16: training rounds weights to bf16 first: give --format too, or leave it out");
    file.formats = trained_in(*step);
  }
  const QuantizeReport report = quantize_file(file);
  fmt::print("{}", options.answer == Format::json ? report.json() + "\n" : report.text());
  return 0;
}

}  // namespace tessera
