#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace tessera {

/// Describes a model of Hugging Face; not a companion, since a conversion writes its own.
inline constexpr const char* hf_config_file = "config.json";

inline constexpr const char* tokenizer_file = "tokenizer.json";
inline constexpr const char* tokenizer_config_file = "tokenizer_config.json";
inline constexpr const char* generation_config_file = "generation_config.json";
/// The token ids that a config.json of Hugging Face gives: a JSON object of its keys that end in "_token_id". Other
/// programs do not know the file.
inline constexpr const char* token_ids_file = "token_ids.json";

/// The files that travel with weights unchanged, because they say how text becomes tokens, where a text ends and how a
/// conversation is written. They are Hugging Face's, and token_ids_file.
inline constexpr const char* companion_files[] = {
    tokenizer_file,    tokenizer_config_file, "special_tokens_map.json", "added_tokens.json",
    "vocab.json",      "merges.txt",          "tokenizer.model",         "chat_template.jinja",
    "chat_template.json", generation_config_file, token_ids_file};

/// Their bytes, by name.
using Companions = std::map<std::string, std::string>;

/// The companion of that name in a folder, if there is one. Throws Error{file} if it cannot be read. Local.
std::optional<std::string> companion_in(const std::filesystem::path& folder, const char* name);
/// All of a folder. Throws Error{file} if one cannot be read. Local.
Companions companions_in(const std::filesystem::path& folder);

/// The sum of their sizes.
std::size_t bytes_of(const Companions& companions);

}  // namespace tessera
