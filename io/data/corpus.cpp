#include "io/data/corpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

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

/// The marks beside the files, as many as are wanted.
std::vector<MarksFile> marks_of(const std::vector<TokenFile>& files, WithMarks wanted) {
  std::vector<MarksFile> marked;
  if (wanted == WithMarks::none) return marked;
  const auto has_marks = [](const TokenFile& file) {
    std::error_code unknown;  // opening the file reports what is wrong
    return fs::exists(marks_beside(file.path()), unknown);
  };
  const auto bare = std::ranges::find_if_not(files, has_marks), with = std::ranges::find_if(files, has_marks);
  if (bare != files.end() && wanted == WithMarks::required)
    throw Error(Exit::file, fmt::format("{}: {} is not there, and data.loss_mask needs it: prepare.py --chat writes it",
                                        bare->path().string(), marks_beside(bare->path()).filename().string()));
  if (bare != files.end() && with != files.end())
    throw Error(Exit::file, fmt::format("{} has marks of documents beside it, and {} has none: give them to "
                                        "data.mixture as two corpora, or make both alike",
                                        with->path().string(), bare->path().string()));
  if (bare == files.end())
    for (const TokenFile& file : files) marked.emplace_back(file);
  return marked;
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
  return Corpus(std::move(paths), std::move(ends), std::move(text), {}, {});
}

Corpus Corpus::token_files(std::vector<fs::path> paths, WithMarks marks) {
  std::vector<TokenFile> mapped;
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const fs::path& path : paths) {
    const TokenSpan tokens = mapped.emplace_back(path).tokens();
    ends.push_back(end += std::visit([](auto ids) { return std::ssize(ids); }, tokens));
  }
  std::vector<MarksFile> marked = marks_of(mapped, marks);
  return Corpus(std::move(paths), std::move(ends), {}, std::move(mapped), std::move(marked));
}

Corpus::Corpus(std::vector<fs::path> paths, std::vector<std::int64_t> ends, std::vector<std::uint8_t> text,
               std::vector<TokenFile> mapped, std::vector<MarksFile> marked)
    : paths_(std::move(paths)),
      ends_(std::move(ends)),
      text_(std::move(text)),
      mapped_(std::move(mapped)),
      marked_(std::move(marked)) {
  stream_.append(std::span<const std::uint8_t>(text_));
  for (const TokenFile& file : mapped_) stream_.append(file.tokens());
  for (const MarksFile& file : marked_) marks_.append(file.marks());
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
  if (marked_.empty()) return;
  sum = 0;
  each_block(marks_, [&](std::int64_t first, std::span<const std::int32_t> marks) { sum += digest_of(first, marks); });
  hash_ = mix64(hash_ ^ mix64(sum));
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
