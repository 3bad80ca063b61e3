#include "io/convert/hf_companions.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "io/convert/hf_config.hpp"
#include "io/convert/json_file.hpp"
#include "io/files/text_file.hpp"
#include "io/text/tokenizer.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* own_ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};  // those that config.json gives

/// The ids that a value lists: one, several or none.
std::vector<std::int32_t> ids_in(const Json& value) {
  std::vector<std::int32_t> ids;
  for (const Json& id : value.is_array() ? value : Json::array({value}))
    if (id.is_number_integer()) ids.push_back(id.get<std::int32_t>());
  return ids;
}
Json value_of(const std::vector<std::int32_t>& ids) {
  return ids.empty() ? Json() : ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

/// Tokens that a tokenizer.json lists as added, as pairs of content and id; none if the text is no such file.
std::vector<std::pair<std::string, std::int32_t>> added_tokens(const std::string& tokenizer) {
  std::vector<std::pair<std::string, std::int32_t>> tokens;
  const Json json = Json::parse(tokenizer, nullptr, false);
  if (!json.is_object() || !json.contains("added_tokens") || !json["added_tokens"].is_array()) return tokens;
  for (const Json& token : json["added_tokens"])
    if (token.is_object() && token.contains("content") && token["content"].is_string() && token.contains("id") &&
        token["id"].is_number_integer())
      tokens.emplace_back(token["content"], token["id"]);
  return tokens;
}

/// The content of the end token that a tokenizer_config.json names: a text, or an object that has it.
std::string named_end(const Json& config) {
  const Json end = config.value("eos_token", Json());
  if (end.is_string()) return end;
  return end.is_object() && end.contains("content") && end["content"].is_string() ? end["content"].get<std::string>()
                                                                                  : "";
}

std::vector<std::int32_t> end_of_tokenizer(const CompanionText& text, const std::filesystem::path& folder) {
  const std::optional<std::string> tokenizer = text(tokenizer_file);
  if (!tokenizer) return {};
  const auto tokens = added_tokens(*tokenizer);
  if (const auto config = text(tokenizer_config_file)) {
    const std::string name = named_end(json_object(*config, folder / tokenizer_config_file));
    const auto found = std::ranges::find(tokens, name, [](const auto& token) { return token.first; });
    if (found != tokens.end()) return {found->second};
  }
  try {
    const std::optional<EndOfText> end = end_of_text_in(*tokenizer);
    return end ? std::vector{end->id} : std::vector<std::int32_t>();
  } catch (const Json::exception&) {  // of another shape than that of a tokenizer.json
    return {};
  }
}

CompanionText text_in(const Companions& companions) {
  return [&companions](const char* name) {
    const auto found = companions.find(name);
    return found == companions.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace

std::optional<std::string> hf_companion(const std::filesystem::path& folder, const char* name) {
  if (name != std::string_view(token_ids_file)) return companion_in(folder, name);
  const Json config = read_json_object(folder / hf_config_file);
  Json ids = Json::object();
  for (const auto& [key, value] : config.items())
    if (key.ends_with("_token_id") && !value.is_null()) ids[key] = value;
  return ids.empty() ? std::nullopt : std::optional(ids.dump(2) + "\n");
}

Companions hf_companions(const std::filesystem::path& folder) {
  Companions found;
  for (const char* name : companion_files)
    if (auto bytes = hf_companion(folder, name)) found.emplace(name, std::move(*bytes));
  return found;
}

std::string left_behind(const std::filesystem::path& folder) {
  constexpr const char* templates = "additional_chat_templates";
  std::error_code absent;
  if (!std::filesystem::exists(folder / templates, absent)) return "";
  return fmt::format("{}: is not taken along; chat_template.jinja is", (folder / templates).string());
}

std::vector<std::int32_t> end_ids(const CompanionText& text, const std::filesystem::path& folder) {
  for (const char* name : {generation_config_file, token_ids_file})
    if (const auto found = text(name)) {
      const std::vector<std::int32_t> ids = ids_in(json_object(*found, folder / name).value("eos_token_id", Json()));
      if (!ids.empty()) return ids;
    }
  return end_of_tokenizer(text, folder);
}

HfCompanions::HfCompanions(const Companions& companions, const std::filesystem::path& source, std::int64_t positions)
    : files_(companions), source_(source), token_ids_(std::make_shared<Json>(Json::object())) {
  const std::vector<std::int32_t> ends = end_ids(text_in(files_), source_);
  if (!ends.empty()) (*token_ids_)["eos_token_id"] = value_of(ends);
  const Json ids = read(token_ids_file);
  for (const char* key : own_ids)
    if (ids.contains(key)) (*token_ids_)[key] = ids[key];
  files_.erase(token_ids_file);
  if (files_.contains(tokenizer_file) && !files_.contains(tokenizer_config_file)) add_tokenizer_config(positions, ends);
  if (!ends.empty()) add_generation_config(ends);
}

void HfCompanions::write(const std::filesystem::path& folder) const {
  for (const auto& [name, bytes] : files_) replace_text_file(folder / name, bytes);
}

/// A companion that is a JSON object; an empty one if it is not there.
Json HfCompanions::read(const char* name) const {
  const auto found = files_.find(name);
  return found == files_.end() ? Json::object() : json_object(found->second, source_ / name);
}

void HfCompanions::add_tokenizer_config(std::int64_t positions, const std::vector<std::int32_t>& ends) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", positions},
                 {"clean_up_tokenization_spaces", false}};
  const auto tokens = added_tokens(files_[tokenizer_file]);
  const auto end = std::ranges::find_if(
      tokens, [&](const auto& token) { return std::ranges::find(ends, token.second) != ends.end(); });
  if (end != tokens.end()) config["eos_token"] = end->first;
  files_[tokenizer_config_file] = config.dump(2) + "\n";
}

/// Adds the ids that a generation_config.json needs, unless it says by itself where a text ends.
void HfCompanions::add_generation_config(const std::vector<std::int32_t>& ends) {
  Json config = read(generation_config_file);
  if (!ids_in(config.value("eos_token_id", Json())).empty()) return;
  config["eos_token_id"] = value_of(ends);
  for (const char* key : own_ids)
    if (token_ids_->contains(key) && !config.contains(key)) config[key] = (*token_ids_)[key];
  if (!config.contains("pad_token_id")) config["pad_token_id"] = ends.front();
  files_[generation_config_file] = config.dump(2) + "\n";
}

}  // namespace tessera
