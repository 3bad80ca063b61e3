#include "io/data/corpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/digest/digest.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t block = 4096;

// Calls f(first, ids) for consecutive blocks of the stream.
template <class F>
void each_block(const TokenStream& tokens, const F& f) {
  std::array<std::int32_t, block> ids;
  for (std::int64_t first = 0; first < tokens.count(); first += block) {
    const auto n = static_cast<std::size_t>(std::min(block, tokens.count() - first));
    tokens.read(first, std::span(ids).first(n));
    f(first, std::span<const std::int32_t>(ids).first(n));
  }
}

std::uint64_t digest_of(std::int64_t first, std::span<const std::int32_t> ids) {
  std::uint64_t sum = 0, position = static_cast<std::uint64_t>(first);
  for (const std::int32_t id : ids) sum += mix64(static_cast<std::uint32_t>(id) ^ (++position * 0x9E3779B97F4A7C15u));
  return sum;
}

std::uint32_t largest_of(std::span<const std::int32_t> ids) {
  std::uint32_t top = 0;
  for (const std::int32_t id : ids) top = std::max(top, static_cast<std::uint32_t>(id));
  return top;
}

}  // namespace

Corpus Corpus::text(std::vector<fs::path> paths) {
  std::vector<std::uint8_t> text;
  std::vector<std::int64_t> ends;
  for (const fs::path& path : paths) {
    const MappedFile file(path);
    const auto* first = reinterpret_cast<const std::uint8_t*>(file.bytes().data());
    text.insert(text.end(), first, first + file.bytes().size());
    ends.push_back(std::ssize(text));
  }
  return Corpus(std::move(paths), std::move(ends), std::move(text), {});
}

Corpus Corpus::token_files(std::vector<fs::path> paths) {
  std::vector<TokenFile> mapped;
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const fs::path& path : paths) {
    const TokenSpan tokens = mapped.emplace_back(path).tokens();
    ends.push_back(end += std::visit([](auto ids) { return std::ssize(ids); }, tokens));
  }
  return Corpus(std::move(paths), std::move(ends), {}, std::move(mapped));
}

Corpus::Corpus(std::vector<fs::path> paths, std::vector<std::int64_t> ends, std::vector<std::uint8_t> text,
               std::vector<TokenFile> mapped)
    : paths_(std::move(paths)), ends_(std::move(ends)), text_(std::move(text)), mapped_(std::move(mapped)) {
  stream_.append(std::span<const std::uint8_t>(text_));
  for (const TokenFile& file : mapped_) stream_.append(file.tokens());
  require(!paths_.empty(), "Corpus", "a corpus has files");
  if (stream_.count() == 0)
    throw Error(Exit::file, fmt::format("{}: the corpus is empty: its {} file(s) hold no token; check data.files",
                                        paths_.front().string(), paths_.size()));
  std::uint64_t sum = 0;
  each_block(stream_, [&](std::int64_t first, std::span<const std::int32_t> ids) {
    sum += digest_of(first, ids);
    largest_ = std::max(largest_, std::int64_t{largest_of(ids)});
  });
  hash_ = mix64(sum ^ static_cast<std::uint64_t>(stream_.count()));
}

void Corpus::check_vocabulary(std::int64_t vocabulary, Problems& problems) const {
  if (largest_ < vocabulary) return;
  const auto outside = [&](auto token) { return std::int64_t{token} >= vocabulary; };
  if (std::ranges::any_of(text_, outside))
    problems.add(Exit::file,
                 fmt::format("the text holds byte {}, but model.vocab is {}: text needs 256", largest_, vocabulary));
  for (const TokenFile& file : mapped_) {
    const std::string text = std::visit(
        [&](auto tokens) -> std::string {
          const auto at = std::ranges::find_if(tokens, outside);
          if (at == tokens.end()) return "";
          return fmt::format(
              "{}: token {} at position {} is outside the vocabulary; model.vocab is {} and must be at least {}",
              file.path().string(), *at, at - tokens.begin(), vocabulary, largest_ + 1);
        },
        file.tokens());
    if (!text.empty()) return problems.add(Exit::file, text);
  }
}

}  // namespace tessera
