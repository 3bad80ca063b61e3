#include "app/training/start/measured_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <span>
#include <string_view>

#include "core/config/keys.hpp"
#include "core/config/recipe_schedule.hpp"
#include "io/data/no_text.hpp"
#include "io/files/access.hpp"
#include "io/files/text_file.hpp"
#include "io/text/splitting.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_at_once = std::size_t{1} << 28;  // bytes of one broadcast

std::string name_of_text(const std::string& path) { return path == "-" ? "standard input" : path; }

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  switch (entry_at(path)) {
    case Entry::none: {
      std::error_code no_link;
      const std::filesystem::path to = std::filesystem::read_symlink(path, no_link);
      const std::string what = to.empty() ? "" : fmt::format("is a link to {}, which ", to.string());
      throw Error(Exit::file, fmt::format("--text {}: {}is not there", path, what));
    }
    case Entry::folder: throw Error(Exit::file, fmt::format("--text {}: is a folder: name a file of text", path));
    case Entry::other:
      throw Error(Exit::file, fmt::format("--text {}: is a pipe or device: name a file, or give the text by standard "
                                          "input with --text -",
                                          path));
    case Entry::file: break;
  }
  return read_text_file(path);
}

/// Throws for a text that is none.
void require_text(const std::string& path, const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Exit::file, fmt::format("--text {}: {}; UTF-8 text is needed", name_of_text(path), why));
  };
  if (text.empty()) refuse("is empty");
  if (const std::string why = what_instead_of_text(path, std::as_bytes(std::span(text))); !why.empty()) refuse(why);
  if (const std::size_t at = broken_utf8(text); at != std::string::npos)
    refuse(fmt::format("is no UTF-8 from its byte {} on", at));
}

/// Bytes at the beginning of `text` that its first token stands for.
std::size_t first_bytes(const std::string& text, std::int32_t first, const TextEncoding& encoding) {
  const std::vector<std::int32_t> around = encoding.encode("");  // tokens that stand around every text
  if (!around.empty() && around.front() == first) return 0;
  const std::string bytes = encoding.bytes_of(first);
  const bool prefixed = bytes.starts_with(' ') && !text.starts_with(' ');
  return std::min(text.size(), bytes.size() - (prefixed ? 1 : 0));
}

/// Keys, and sections, on which the loss of a text depends, or the way to it.
constexpr std::string_view measuring[] = {"model",  "precision", "batch.micro", "run.threads", "sharding",
                                          "gather", "parallel",  "comm",        "proof"};

bool measures(const std::string& key) {
  return std::ranges::any_of(measuring, [&](std::string_view one) {
    return key.starts_with(one) && (key.size() == one.size() || key[one.size()] == '.');
  });
}

/// The weights' model and number formats in a config that says nothing else. What is derived from number formats is
/// left open, for overrides of these.
RunConfig bare(const GivenWeights& given) {
  const RunConfig& saved = given.config;
  RunConfig config;
  config.run.seed = saved.run.seed;
  config.model = saved.model;
  config.data.kind = saved.data.kind;
  config.data.files = {"none"};
  config.batch.micro = std::max<std::int64_t>(1, saved.batch.micro);
  config.batch.global = config.batch.micro;
  config.precision = config_at(saved, given.counters.step).precision;
  config.precision.primary_weights = {};
  config.sharding = saved.sharding;
  config.comm = saved.comm;
  config.proof.share_gpu = saved.proof.share_gpu;
  config.proof.copy_engines = saved.proof.copy_engines;
  return config;
}

}  // namespace

std::string text_to_measure(const std::string& path, Control& control) {
  Problems problems;
  std::string text;
  if (control.rank() == 0)
    attempt(problems, [&] {
      text = read_text(path);
      require_text(path, text);
    });
  control.agree(problems);
  const auto size = static_cast<std::size_t>(control.max(std::ssize(text)));
  std::string all;
  while (all.size() < size)
    all += control.broadcast(control.rank() == 0 ? text.substr(all.size(), most_at_once) : std::string());
  return all;
}

MeasuredText measured(const std::string& path, const std::string& text, const TextEncoding& encoding,
                      std::int64_t length) {
  std::vector<std::int32_t> ids;
  try {
    ids = encoding.encode(text);
  } catch (const Error& error) {
    throw Error(Exit::file, fmt::format("--text {}: {}", name_of_text(path), error.what()));
  }
  if (ids.size() < 2)
    throw Error(Exit::file, fmt::format("--text {}: is {} long; the first is not predicted, so two are needed",
                                        name_of_text(path), ids.empty() ? "no token" : "one token"));
  MeasuredText made;
  made.ids.assign(ids.begin(), ids.end());
  made.tokens.append(std::span<const std::uint32_t>(made.ids));
  made.windows = Windows::whole(std::ssize(ids), length);
  made.bytes = static_cast<std::int64_t>(text.size() - first_bytes(text, ids.front(), encoding));
  return made;
}

Deck deck_to_measure(const GivenWeights& given, const std::vector<Override>& overrides) {
  Problems problems;
  for (const Override& asked : overrides)
    if (find_key(asked.key) && !measures(asked.key))
      problems.add(Exit::deck,
                   fmt::format("--set {}={}: {} changes nothing in the loss of a text: keys of {} may be set",
                               asked.key, asked.value, asked.key, fmt::join(measuring, ", ")));
  problems.raise();
  Deck plain;
  plain.config = bare(given);
  Deck deck = parse_deck(resolved_text(plain), given.path.string(), overrides, problems);
  problems.raise();
  return deck;
}

}  // namespace tessera
