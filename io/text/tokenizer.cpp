#include "io/text/tokenizer.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "io/files/text_file.hpp"
#include "io/text/reader.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

std::optional<EndOfText> end_of_text_in(const std::string& tokenizer_json) {
  using Json = nlohmann::json;
  const Json json = Json::parse(tokenizer_json, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const Json added = json.value("added_tokens", Json::array());
  const Json vocab = json.value("/model/vocab"_json_pointer, Json::object());
  for (const char* end : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    for (const Json& token : added)
      if (token.value("content", "") == end) return EndOfText{token.at("id"), end};
    if (vocab.is_object() && vocab.contains(end)) return EndOfText{vocab.at(end), end};
  }
  return std::nullopt;
}

Tokenizer::Tokenizer(const std::filesystem::path& path) : Tokenizer(read_text_file(path), path.string()) {}

Tokenizer::Tokenizer(std::string text, const std::string& name) : text_(std::move(text)) {
  TokenizerReader(*this, name).read();
  if (const auto end = end_of_text_in(text_)) end_of_text_ = end->id;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  if (const std::size_t at = broken_utf8(text); at != std::string_view::npos)
    throw Error(Exit::usage, fmt::format("the text is no UTF-8 from its byte {} on, and cannot be encoded", at));
  std::vector<std::int32_t> ids = before_;
  const auto take = [&](std::int32_t id) { ids.push_back(id); };
  raw_.find(text, take, [&](std::string_view part) {
    normalized_.find(normalize(part), take, [&](std::string_view words) { encode_words(words, ids); });
  });
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string Tokenizer::normalize(std::string_view text) const {
  std::string result(text);
  for (const Normalizer& normalizer : normalizers_) result = normalizer(result);
  return result;
}

void Tokenizer::encode_words(std::string_view text, std::vector<std::int32_t>& ids) const {
  for (const std::string& word : words_.of(text))
    if (const std::size_t at = pairs_.encode(word, ids); at != std::string_view::npos)
      throw Error(Exit::usage, fmt::format("the text holds byte 0x{:02X}, which the tokenizer has no token for",
                                           static_cast<unsigned char>(word[at])));
}

std::string Tokenizer::bytes_of(std::int32_t token) const {
  const auto found = bytes_.find(token);
  return found == bytes_.end() ? "" : found->second;
}

}  // namespace tessera
