#include "app/training/start/known_tokenizer.hpp"

#include <fmt/format.h>

#include "io/files/access.hpp"
#include "io/files/text_file.hpp"
#include "io/text/kinship.hpp"
#include "io/text/tokenizer.hpp"

namespace tessera {

KnownTokenizer tokenizer_of(const GivenWeights& given) {
  if (std::optional<std::string> json = given.companion(tokenizer_file))
    return {(given.path / tokenizer_file).string(), std::move(json)};
  return {given.path.string(), {}, given.config.data.kind == DataKind::text};
}

KnownTokenizer tokenizer_of(const Prepared& run) {
  const DataConfig& data = run.deck.config.data;
  if (run.tokenizer) return {"data.tokenizer", run.tokenizer->text()};
  if (data.kind == DataKind::text) return {"data.kind: text", {}, true};
  if (!run.made_with.empty()) return {run.made_with.string(), read_text_file(run.made_with)};
  return {"", {}};
}

std::unique_ptr<TextEncoding> encoding_of(const GivenWeights& given) {
  if (const std::filesystem::path path = given.path / tokenizer_file; entry_at(path) != Entry::none) {
    if (entry_at(path) != Entry::file) throw Error(Exit::file, path.string() + ": is no file");
    auto tokenizer = std::make_unique<Tokenizer>(path);
    if (const std::int64_t vocab = given.config.model.vocab; tokenizer->vocabulary() > vocab)
      throw Error(Exit::file, fmt::format("{}: has {} tokens, and the model a vocabulary of {}: is it another model's?",
                                          path.string(), tokenizer->vocabulary(), vocab));
    return tokenizer;
  }
  if (given.config.data.kind == DataKind::text) return std::make_unique<ByteEncoding>();
  return nullptr;
}

std::string other_tokens(const KnownTokenizer& theirs, const KnownTokenizer& ours, std::vector<std::string>& told) {
  if (theirs.json && ours.json) {
    const Kinship kinship = kinship_of(*theirs.json, *ours.json);
    if (!kinship.told.empty()) told.push_back(fmt::format("{} against {}: {}", ours.name, theirs.name, kinship.told));
    return kinship.conflict;
  }
  if (theirs.json && ours.bytes) return "this run's tokens are bytes";
  if (theirs.bytes && ours.json) return "their tokens are bytes";
  const bool known = theirs.json || theirs.bytes, wanted = ours.json || ours.bytes;
  if (ours.json && !known)
    told.push_back(fmt::format("{} holds no {}: whether its weights know {} is not known", theirs.name, tokenizer_file,
                               ours.name));
  if (known && !wanted)
    told.push_back(fmt::format("data.tokenizer is not given: whether the token files are those of {} is not known",
                               theirs.json ? theirs.name : theirs.name + ", whose tokens are bytes,"));
  return "";
}

}  // namespace tessera
