#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/companions.hpp"

namespace tessera {

/// The companion of that name in a Hugging Face folder, if there is one; token_ids_file is made of its config.json.
/// Throws Error{file}. Local.
std::optional<std::string> hf_companion(const std::filesystem::path& folder, const char* name);
/// All of a folder. Throws Error{file}. Local.
Companions hf_companions(const std::filesystem::path& folder);

/// A line that names what of such files does not travel; empty: all does. Local.
std::string left_behind(const std::filesystem::path& folder);

/// The text of a companion by its name; empty if there is none.
using CompanionText = std::function<std::optional<std::string>(const char* name)>;

/// The ids that end a text: those of generation_config.json, else of config.json, else the end token by
/// tokenizer_config.json, else that of tokenizer.json. Only files up to the first that says it are asked for. Throws
/// Error{file} if a file is no JSON; a tokenizer.json that is none says nothing. `folder`: for messages.
std::vector<std::int32_t> end_ids(const CompanionText& text, const std::filesystem::path& folder);

/// The companions as files of a new Hugging Face folder, and the token ids for its config.json. Those that are there
/// stay byte for byte; what transformers' text generation needs besides is added.
class HfCompanions {
 public:
  /// `source`: the folder that they come from, for messages; `positions`: length of the model's sequences. Throws
  /// Error{file} as end_ids() does.
  HfCompanions(const Companions& companions, const std::filesystem::path& source, std::int64_t positions);

  const nlohmann::ordered_json& token_ids() const { return *token_ids_; }
  /// Throws Error{environment}.
  void write(const std::filesystem::path& folder) const;

 private:
  nlohmann::ordered_json read(const char* name) const;
  void add_tokenizer_config(std::int64_t positions, const std::vector<std::int32_t>& ends);
  void add_generation_config(const std::vector<std::int32_t>& ends);

  Companions files_;
  std::filesystem::path source_;
  std::shared_ptr<nlohmann::ordered_json> token_ids_;  ///< as a pointer, since its type is only declared here
};

}  // namespace tessera
