#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "app/cli/threads.hpp"
#include "app/verbs/verbs.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/convert/quantize_file.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {

int run_quantize(const QuantizeOptions& options) {
  for (const auto& [name, path] : {std::pair("IN", options.in), std::pair("--out", options.out)})
    if (path.empty()) throw Error(Exit::usage, std::string(name) + ": is empty");
  const Runtime runtime(static_cast<int>(host_threads(1)));
  // A run or a step stands for its model.h5, as with the other verbs.
  std::error_code absent;
  const std::filesystem::path in = std::filesystem::is_directory(options.in, absent) && !is_hf_folder(options.in)
                                       ? find_checkpoint(options.in) / "model.h5"
                                       : std::filesystem::path(options.in);
  const QuantizeReport report = quantize_file({.in = in,
                                               .out = options.out,
                                               .tensors = options.tensors,
                                               .format = options.format,
                                               .precision = options.precision});
  fmt::print("{}", options.answer == Format::json ? report.json() + "\n" : report.text());
  return 0;
}

}  // namespace tessera
