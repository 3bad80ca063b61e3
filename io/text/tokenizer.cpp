#include "io/text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "io/files/text_file.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

/// GPT-2's pattern of words, by which a ByteLevel pre-tokenizer splits unless use_regex is false.
constexpr const char* gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Map from a vocabulary's characters to bytes: printable characters of Latin-1 stand for themselves, those from U+0100
/// on for the other bytes.
const std::unordered_map<std::string, char>& bytes_of_characters() {
  static const auto table = [] {
    std::unordered_map<std::string, char> bytes;
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int code = printable ? b : next++;
      std::string character;
      if (code < 0x80) character = static_cast<char>(code);
      else character = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
      bytes[character] = static_cast<char>(b);
    }
    return bytes;
  }();
  return table;
}

/// The bytes that a token of the vocabulary stands for; empty if it has other characters than those.
std::optional<std::string> token_bytes(const std::string& token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const std::size_t length = static_cast<unsigned char>(token[i]) < 0x80 ? 1 : 2;
    const auto found = bytes_of_characters().find(token.substr(i, length));
    if (found == bytes_of_characters().end()) return std::nullopt;
    bytes += found->second;
    i += length;
  }
  return bytes;
}

std::string kind_of(const Json& part) { return part.is_object() ? part.value("type", "?") : part.dump(); }

}  // namespace

/// Reads the parts of a tokenizer.json and collects all complaints.
class TokenizerReader {
 public:
  TokenizerReader(Tokenizer& into, const std::string& name) : into_(into), name_(name) {}

  void read() {
    const Json json = Json::parse(into_.text_, nullptr, false);
    if (!json.is_object() || !json.contains("model"))
      throw Error(Exit::file, name_ + ": is no tokenizer.json: a JSON object with a \"model\" is needed");
    try {
      read_model(json.at("model"));
      if (json.contains("added_tokens")) read_added(json.at("added_tokens"));
      each(json, "normalizer", "normalizers", [&](const Json& part) { read_normalizer(part); });
      each(json, "pre_tokenizer", "pretokenizers", [&](const Json& part) { read_words(part); });
      each(json, "post_processor", "processors", [&](const Json& part) { read_template(part); });
      each(json, "decoder", "decoders", [&](const Json& part) { require_kind("decoder", part, "ByteLevel"); });
    } catch (const Json::exception& error) {
      refuse(error.what());
    }
    if (!byte_level_) refuse("pre_tokenizer: has no ByteLevel: byte-level BPE alone is supported");
    problems_.raise();
    for (auto* list : {&into_.raw_, &into_.normalized_})
      std::ranges::stable_sort(*list, std::greater<>(), [](const auto& token) { return token.content.size(); });
  }

 private:
  void refuse(const std::string& what) { problems_.add(Exit::file, name_ + ": " + what); }
  void require_kind(const char* where, const Json& part, const char* kind) {
    if (kind_of(part) != kind)
      refuse(fmt::format("{}: {} is not supported; {} is", where, kind_of(part), kind));
  }
  /// Calls f for a part of the file, or for each member if the part is a Sequence.
  template <class F>
  void each(const Json& json, const char* key, const char* members, const F& f) {
    if (!json.contains(key) || json.at(key).is_null()) return;
    const Json& part = json.at(key);
    if (kind_of(part) != "Sequence") return f(part);
    for (const Json& member : part.at(members)) f(member);
  }

  void read_model(const Json& model) {
    if (kind_of(model) != "BPE") return refuse("model: " + kind_of(model) + " is not supported; byte-level BPE is");
    for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
      if (model.contains(key) && !model.at(key).is_null() && model.at(key) != "")
        refuse(fmt::format("model.{}: {} is not supported", key, model.at(key).dump()));
    if (model.value("byte_fallback", false)) refuse("model.byte_fallback: is not supported; byte-level BPE is");
    if (model.value("ignore_merges", false)) into_.pairs_.take_whole_words();
    for (const auto& [token, id] : model.at("vocab").items()) {
      const std::optional<std::string> bytes = token_bytes(token);
      if (bytes) into_.pairs_.add_token(*bytes, id);
      keep(bytes.value_or(token), id);
    }
    for (const Json& merge : model.at("merges")) {
      const std::string whole = merge.is_string() ? merge.get<std::string>() : "";
      const std::size_t space = whole.find(' ');
      const auto left = token_bytes(merge.is_string() ? whole.substr(0, space) : merge.at(0).get<std::string>());
      const auto right = token_bytes(merge.is_string() ? whole.substr(space + 1) : merge.at(1).get<std::string>());
      if (!left || !right || !into_.pairs_.add_merge(*left, *right))
        return refuse("model.merges: " + merge.dump() + " has a part that is not in the vocabulary");
    }
  }

  void keep(const std::string& bytes, std::int32_t id) {
    into_.bytes_[id] = bytes;
    into_.vocabulary_ = std::max(into_.vocabulary_, std::int64_t{id} + 1);
  }

  void read_added(const Json& tokens) {
    for (const Json& token : tokens) {
      const std::string content = token.at("content");
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (token.value(key, false)) refuse(fmt::format("added_tokens: {}: {} is not supported", content, key));
      const std::int32_t id = token.at("id");
      (token.value("normalized", true) ? into_.normalized_ : into_.raw_).push_back({content, id});
      keep(token.value("special", false) ? "" : content, id);
    }
  }

  void read_normalizer(const Json& part) {
    require_kind("normalizer", part, "NFC");
    into_.compose_ = true;
  }

  void read_words(const Json& part) {
    if (kind_of(part) == "ByteLevel") {
      byte_level_ = true;
      into_.prefix_space_ = part.value("add_prefix_space", true);
      if (part.value("use_regex", true)) add_words(gpt2_words, Splitter::Between::kept);
      return;
    }
    require_kind("pre_tokenizer", part, "Split");
    if (kind_of(part) != "Split") return;
    const Json& pattern = part.at("pattern");
    const std::string behavior = part.at("behavior");
    const bool inverted = part.value("invert", false), isolated = behavior == "Isolated" && !inverted;
    if (!pattern.contains("Regex") || !(isolated || (behavior == "Removed" && inverted)))
      return refuse(fmt::format("pre_tokenizer: Split by {}, {}{}, is not supported; a Regex with Isolated is",
                                pattern.dump(), behavior, inverted ? " inverted" : ""));
    add_words(pattern.at("Regex"), isolated ? Splitter::Between::kept : Splitter::Between::dropped);
  }
  void add_words(const std::string& pattern, Splitter::Between between) {
    try {
      into_.splitters_.emplace_back(pattern, between);
    } catch (const Error& error) {
      refuse(std::string("pre_tokenizer: ") + error.what());
    }
  }

  void read_template(const Json& part) {
    if (kind_of(part) == "ByteLevel") return;  // changes offsets only, which are not used
    require_kind("post_processor", part, "TemplateProcessing");
    if (kind_of(part) != "TemplateProcessing") return;
    std::vector<std::int32_t>* side = &into_.before_;
    for (const Json& piece : part.at("single")) {
      if (piece.contains("Sequence")) {
        side = &into_.after_;
        continue;
      }
      const std::string token = piece.at("SpecialToken").at("id");
      for (const Json& id : part.at("special_tokens").at(token).at("ids")) side->push_back(id);
    }
  }

  Tokenizer& into_;
  std::string name_;
  bool byte_level_ = false;
  Problems problems_;
};

std::optional<EndOfText> end_of_text_in(const std::string& tokenizer_json) {
  const Json json = Json::parse(tokenizer_json, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  for (const Json& token : json.value("added_tokens", Json::array()))
    for (const char* end : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
      if (token.value("content", "") == end) return EndOfText{token.at("id"), end};
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
  encode_stage(Stage::raw, text, ids);
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

/// Finds added tokens in the text, the leftmost first and of these the longest; the text between goes to the next
/// stage.
void Tokenizer::encode_stage(Stage stage, std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::vector<Added>& tokens = stage == Stage::raw ? raw_ : normalized_;
  const auto go_on = [&](std::string_view part) {
    if (part.empty()) return;
    if (stage == Stage::normalized) return encode_words(part, ids);
    compose_ ? encode_stage(Stage::normalized, composed(part), ids) : encode_stage(Stage::normalized, part, ids);
  };
  while (true) {
    std::size_t at = std::string_view::npos;
    const Added* found = nullptr;
    for (const Added& token : tokens)
      if (const std::size_t place = text.find(token.content); !token.content.empty() && place < at) {
        at = place;
        found = &token;
      }
    go_on(text.substr(0, at));
    if (!found) return;
    ids.push_back(found->id);
    text.remove_prefix(at + found->content.size());
  }
}

void Tokenizer::encode_words(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::string longer = prefix_space_ && !text.starts_with(' ') ? " " + std::string(text) : "";
  std::vector<std::string_view> words{longer.empty() ? text : std::string_view(longer)};
  for (const Splitter& splitter : splitters_) {
    std::vector<std::string_view> finer;
    for (const std::string_view word : words)
      for (const std::string_view piece : splitter.pieces(word)) finer.push_back(piece);
    words = std::move(finer);
  }
  for (const std::string_view word : words)
    if (const std::size_t at = pairs_.encode(word, ids); at != std::string_view::npos)
      throw Error(Exit::usage, fmt::format("the text holds byte 0x{:02X}, which the tokenizer has no token for",
                                           static_cast<unsigned char>(word[at])));
}

std::string Tokenizer::bytes_of(std::int32_t token) const {
  const auto found = bytes_.find(token);
  return found == bytes_.end() ? "" : found->second;
}

}  // namespace tessera
