#include <cstdio>

#include <fmt/format.h>

#include "app/cli/threads.hpp"
#include "app/verbs/verbs.hpp"
#include "io/convert/quantize_file.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

/// The format of that name; what is no quantization is no answer.
FormatId format_named(const std::string& name) {
  std::string allowed;
  for (int i = 0; i < formats::Registry::size; ++i) {
    const FormatTraits traits = traits_of(static_cast<FormatId>(i));
    if (!traits.scaled) continue;
    if (traits.name == name) return static_cast<FormatId>(i);
    allowed += (allowed.empty() ? "" : ", ") + std::string(traits.name);
  }
  throw Error(Exit::usage, fmt::format("--format: '{}' is no quantized format; allowed: {}", name, allowed));
}

}  // namespace

int run_quantize(const QuantizeOptions& options) {
  const FormatId format = format_named(options.format);
  const Runtime runtime(static_cast<int>(host_threads(1)));
  const QuantizeReport report = quantize_file({.in = options.in,
                                               .out = options.out,
                                               .tensors = options.tensors,
                                               .format = format,
                                               .precision = options.precision});
  fmt::print("{}", options.answer == Format::json ? report.json() + "\n" : report.text());
  return 0;
}

}  // namespace tessera
