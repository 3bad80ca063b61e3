#include "io/text/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

namespace tessera {
namespace {

/// GPT-2's pattern of words, by which a ByteLevel pre-tokenizer splits unless use_regex is false.
constexpr const char* gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// The character classes of the library's other pre-tokenizers.
constexpr const char* space = R"(\p{White_Space})";
constexpr const char* punctuation = R"([[\p{P}&&\p{Age=8.0}]!-/:-@\[-`{-~\u166D\x{111C9}])";  // as of Unicode 8
constexpr const char* words_or_signs =
    R"([\p{Alphabetic=Yes}\p{M}\p{Nd}\p{Pc}\u200C\u200D]+)"
    R"(|[^\s\p{Alphabetic=Yes}\p{M}\p{Nd}\p{Pc}\u200C\u200D]+)";

const std::map<std::string, Cutting> cuttings{{"Removed", Cutting::removed},
                                              {"Isolated", Cutting::isolated},
                                              {"MergedWithPrevious", Cutting::merged_with_previous},
                                              {"MergedWithNext", Cutting::merged_with_next},
                                              {"Contiguous", Cutting::contiguous}};
const std::map<std::string, NormalForm> forms{
    {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};

std::string kind_of(const nlohmann::json& part) { return part.is_object() ? part.value("type", "?") : part.dump(); }

/// A text with every match of a pattern replaced.
std::string replaced(const Pattern& pattern, const std::string& by, std::string_view text) {
  std::string result;
  for (const TextStretch& stretch : pattern.stretches(text)) {
    if (stretch.begin == stretch.end)
      throw Error(Exit::usage, fmt::format("the tokenizer's normalizer replaces nothing by \"{}\" at byte {} of the "
                                           "text, which is not supported: its pattern must match characters",
                                           by, stretch.begin));
    result += stretch.match ? by : std::string(text.substr(stretch.begin, stretch.end - stretch.begin));
  }
  return result;
}

}  // namespace

void TokenizerReader::read() {
  if (unicode_library().empty())
    throw Error(Exit::environment, name_ + ": this program was built without ICU, which a tokenizer needs: install "
                                           "libicu-dev and build again");
  const Json json = Json::parse(into_.text_, nullptr, false);
  if (!json.is_object() || !json.contains("model"))
    throw Error(Exit::file, name_ + ": is no tokenizer.json: a JSON object with a \"model\" is needed");
  try {
    read_model(json.at("model"));
    each_of(json, "normalizer", "normalizers", &TokenizerReader::read_normalizer);
    if (json.contains("added_tokens")) read_added(json.at("added_tokens"));
    each_of(json, "pre_tokenizer", "pretokenizers", &TokenizerReader::read_words);
    each_of(json, "post_processor", "processors", &TokenizerReader::read_template);
    each_of(json, "decoder", "decoders", &TokenizerReader::read_decoder);
  } catch (const Json::exception& error) {
    refuse(error.what());
  }
  if (decoders_ == 0)
    refuse("decoder: has no ByteLevel, without which tokens are shown as they are spelled: it needs one");
  if (!into_.words_.spelled()) refuse("pre_tokenizer: has no ByteLevel: byte-level BPE alone is supported");
  problems_.raise();
}

void TokenizerReader::refuse(const std::string& what) { problems_.add(Exit::file, name_ + ": " + what); }

void TokenizerReader::each(const Json& part, const char* members, void (TokenizerReader::*take)(const Json&)) {
  if (kind_of(part) != "Sequence") return (this->*take)(part);
  for (const Json& member : part.at(members)) each(member, members, take);
}

void TokenizerReader::each_of(const Json& json, const char* key, const char* members,
                              void (TokenizerReader::*take)(const Json&)) {
  if (json.contains(key) && !json.at(key).is_null()) each(json.at(key), members, take);
}

void TokenizerReader::read_model(const Json& model) {
  const bool old = model.is_object() && !model.contains("type") && model.contains("merges");  // GPT-2's own file
  const std::string kind = old ? "BPE" : kind_of(model);
  if (kind != "BPE") return refuse("model: " + kind + " is not supported; byte-level BPE is");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && !model.at(key).is_null() && model.at(key) != "")
      refuse(fmt::format("model.{}: {} is not supported", key, model.at(key).dump()));
  if (const Json dropout = model.value("dropout", Json()); !dropout.is_null() && dropout != 0)
    refuse(fmt::format("model.dropout: {} is not supported: the same text would have other tokens each time",
                       dropout.dump()));
  if (model.value("byte_fallback", false)) refuse("model.byte_fallback: is not supported; byte-level BPE is");
  if (model.value("ignore_merges", false)) into_.pairs_.take_whole_words();
  read_vocabulary(model);
  refuse_unknown_bytes(model);
}

void TokenizerReader::read_vocabulary(const Json& model) {
  std::string left, right;
  for (const auto& [token, json] : model.at("vocab").items()) {
    const std::int32_t id = id_of(json, "model.vocab");
    if (into_.bytes_.contains(id)) refuse(fmt::format("model.vocab: two tokens have the id {}", id));
    if (read_spelled(token, left)) into_.pairs_.add_token(left, id);
    keep(token, id);
  }
  next_added_ = static_cast<std::int32_t>(ids_.size());
  for (const Json& merge : model.at("merges")) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const std::string whole = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t at = whole.find(' ');
    const std::string first = merge.is_string() ? whole.substr(0, at) : merge.at(0).get<std::string>();
    const std::string second = merge.is_string() ? whole.substr(at + 1) : merge.at(1).get<std::string>();
    if (!read_spelled(first, left) || !read_spelled(second, right) || !into_.pairs_.add_merge(left, right))
      return refuse("model.merges: " + merge.dump() + " has a part that is not in the vocabulary");
  }
}

/// Where every byte is a token, nothing is unknown, and unk_token changes nothing.
void TokenizerReader::refuse_unknown_bytes(const Json& model) {
  const Json unknown = model.value("unk_token", Json());
  if (unknown.is_null()) return;
  std::vector<std::int32_t> ids;
  for (int byte = 0; byte < 256; ++byte)
    if (into_.pairs_.encode(std::string(1, static_cast<char>(byte)), ids) != std::string_view::npos)
      return refuse(fmt::format("model.unk_token: {} is not supported where a byte has no token: 0x{:02X} has none",
                                unknown.dump(), byte));
}

std::int32_t TokenizerReader::id_of(const Json& id, const char* where) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() - 1;
  if (id.is_number_integer() && id >= 0 && id <= most) return id.get<std::int32_t>();
  refuse(fmt::format("{}: {} is no id of a token: whole numbers from 0 on are", where, id.dump()));
  return 0;
}

/// The id of a token of the file, which a template names.
std::int32_t TokenizerReader::token_of(const Json& json) {
  const std::int32_t id = id_of(json, "post_processor");
  if (!into_.bytes_.contains(id)) refuse(fmt::format("post_processor: no token has the id {}", id));
  return id;
}

/// Keeps the bytes of a token; text that is not spelled stands for itself.
void TokenizerReader::keep(const std::string& token, std::int32_t id) {
  std::string bytes;
  ids_[token] = id;
  into_.bytes_[id] = read_spelled(token, bytes) ? bytes : token;
  into_.vocabulary_ = std::max(into_.vocabulary_, std::int64_t{id} + 1);
}

/// The library numbers added tokens itself: as the model does, or one after the other behind its tokens.
void TokenizerReader::check_added(const Json& token) {
  const std::string content = token.at("content");
  const std::int32_t id = id_of(token.at("id"), "added_tokens");
  const auto known = ids_.find(content);
  const std::int32_t expected = known == ids_.end() ? next_added_ : known->second;
  if (content.empty()) refuse(fmt::format("added_tokens: {}: is empty", token.dump()));
  else if (id != expected)
    refuse(fmt::format("added_tokens: {}: has the id {}, and the library gives it {}, {}: put it into model.vocab with "
                       "the id that the model was trained with",
                       token.dump(), id, expected,
                       known == ids_.end() ? "the one behind the tokens before it" : "that of the vocabulary"));
  else if (known == ids_.end() && into_.bytes_.contains(id))
    refuse(fmt::format("added_tokens: {}: another token has its id", token.dump()));
  if (expected >= next_added_) next_added_ = expected + 1;
}

void TokenizerReader::read_added(const Json& tokens) {
  std::vector<std::pair<bool, AddedToken>> ordinary;
  std::set<std::string> contents;
  for (const Json& token : tokens) {
    check_added(token);
    AddedToken added{token.at("content"), id_of(token.at("id"), "added_tokens"), token.value("single_word", false),
                     token.value("lstrip", false), token.value("rstrip", false)};
    if (!contents.insert(added.content).second) refuse(fmt::format("added_tokens: {}: is there twice", token.dump()));
    const bool special = token.value("special", false), after = token.value("normalized", !special);
    keep(added.content, added.id);
    if (special) into_.bytes_[added.id] = "";
    if (after && into_.normalize(added.content).empty() && !added.content.empty())
      refuse(fmt::format("added_tokens: {}: is not supported: the normalizer leaves nothing of it", token.dump()));
    if (after) added.content = into_.normalize(added.content);
    if (special) (after ? into_.normalized_ : into_.raw_).add(std::move(added));
    else ordinary.emplace_back(after, std::move(added));
  }
  // Of two that normalizers make equal, a special one is found.
  for (auto& [after, added] : ordinary) (after ? into_.normalized_ : into_.raw_).add(std::move(added));
}

void TokenizerReader::read_normalizer(const Json& part) {
  const std::string kind = kind_of(part);
  std::vector<Normalizer>& all = into_.normalizers_;
  if (const auto form = forms.find(kind); form != forms.end()) {
    all.emplace_back([form = form->second](std::string_view text) { return normalized(form, text); });
  } else if (kind == "Lowercase") {
    all.emplace_back(lower_case);
  } else if (kind == "Prepend") {
    const std::string front = part.at("prepend");
    all.emplace_back([front](std::string_view text) { return text.empty() ? "" : front + std::string(text); });
  } else if (kind == "Strip") {
    if (part.value("strip_left", true))
      all.emplace_back([](std::string_view text) { return std::string(text.substr(spaces_at_begin(text))); });
    if (part.value("strip_right", true))
      all.emplace_back(
          [](std::string_view text) { return std::string(text.substr(0, text.size() - spaces_at_end(text))); });
  } else if (kind == "Replace") {
    const std::string content = part.at("content");
    const auto expression = expression_of(part.at("pattern"), "normalizer");
    if (!expression) return;
    const auto pattern = std::make_shared<const Pattern>(*expression);
    all.emplace_back([pattern, content](std::string_view text) { return replaced(*pattern, content, text); });
  } else {
    refuse(fmt::format("normalizer: {} is not supported; NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Strip and Replace "
                       "are",
                       kind));
  }
}

/// The regular expression of a pattern; without one, a complaint.
std::optional<std::string> TokenizerReader::expression_of(const Json& pattern, const char* where) {
  try {
    const std::string text = pattern.contains("String") ? literal(pattern.at("String").get<std::string>())
                                                        : pattern.at("Regex").get<std::string>();
    const Pattern valid(text);
    return text;
  } catch (const Error& error) {
    refuse(std::string(where) + ": " + error.what());
    return std::nullopt;
  }
}

void TokenizerReader::read_words(const Json& part) {
  const std::string kind = kind_of(part);
  if (kind == "ByteLevel") {
    if (part.value("add_prefix_space", true)) into_.words_.add(PrefixSpace{});
    if (part.value("use_regex", true)) add_cut(gpt2_words, Cutting::isolated);
    into_.words_.add(Spelling{});
  } else if (kind == "Split") {
    read_split(part);
  } else if (kind == "Digits") {
    add_cut(R"(\p{N})", part.value("individual_digits", false) ? Cutting::isolated : Cutting::contiguous);
  } else if (kind == "Punctuation") {
    const std::string behavior = part.value("behavior", "Isolated");
    add_cut(punctuation, cuttings.contains(behavior) ? cuttings.at(behavior) : Cutting::isolated);
  } else if (kind == "WhitespaceSplit") {
    add_cut(space, Cutting::removed);
  } else if (kind == "Whitespace") {
    add_cut(words_or_signs, Cutting::removed, true);
  } else if (kind == "BertPreTokenizer") {
    add_cut(space, Cutting::removed);
    add_cut(punctuation, Cutting::isolated);
  } else if (kind == "CharDelimiterSplit") {
    add_cut(literal(part.at("delimiter").get<std::string>()), Cutting::removed);
  } else {
    refuse(fmt::format("pre_tokenizer: {} is not supported; ByteLevel, Split, Digits, Punctuation, Whitespace, "
                       "WhitespaceSplit, BertPreTokenizer and CharDelimiterSplit are",
                       kind));
  }
}

void TokenizerReader::read_split(const Json& part) {
  const auto behavior = cuttings.find(part.at("behavior").get<std::string>());
  if (behavior == cuttings.end())
    return refuse(fmt::format("pre_tokenizer: Split: {} is no behavior: Removed, Isolated, MergedWithPrevious, "
                              "MergedWithNext and Contiguous are",
                              part.at("behavior").dump()));
  if (const auto expression = expression_of(part.at("pattern"), "pre_tokenizer"))
    add_cut(*expression, behavior->second, part.value("invert", false));
}

void TokenizerReader::add_cut(const std::string& expression, Cutting cutting, bool inverted) {
  into_.words_.add(WordCut{Pattern(expression), cutting, inverted});
}

void TokenizerReader::read_template(const Json& part) {
  const std::string kind = kind_of(part);
  if (kind == "ByteLevel") return;  // changes offsets only, which are not used
  if (++templates_ > 1)
    return refuse(fmt::format("post_processor: {} behind another of its kind is not supported", kind));
  if (kind == "RobertaProcessing" || kind == "BertProcessing") {
    into_.before_ = {token_of(part.at("cls").at(1))};
    into_.after_ = {token_of(part.at("sep").at(1))};
    return;
  }
  if (kind != "TemplateProcessing")
    return refuse(fmt::format("post_processor: {} is not supported; TemplateProcessing, RobertaProcessing, "
                              "BertProcessing and ByteLevel are",
                              kind));
  std::vector<std::int32_t>* side = &into_.before_;
  for (const Json& piece : part.at("single")) {
    if (piece.contains("Sequence")) {
      if (side == &into_.after_) return refuse("post_processor: a template with the text twice is not supported");
      side = &into_.after_;
      continue;
    }
    const std::string token = piece.at("SpecialToken").at("id");
    for (const Json& id : part.at("special_tokens").at(token).at("ids")) side->push_back(token_of(id));
  }
  if (side == &into_.before_) refuse("post_processor: a template without the text is not supported");
}

void TokenizerReader::read_decoder(const Json& part) {
  if (kind_of(part) != "ByteLevel" || ++decoders_ > 1)
    refuse(fmt::format("decoder: {} is not supported; one ByteLevel is", kind_of(part)));
}

}  // namespace tessera
