#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/config/config.hpp"
#include "io/checkpoint/companions.hpp"
#include "io/convert/hf_names.hpp"

namespace tessera {

/// A model of another program: its family, and a config with `model` and the fewest other keys that a deck must give.
struct ForeignModel {
  Family family = Family::gpt2;
  RunConfig config;
  std::string told;         ///< what a user should know of it, as one line: keys passed over; or empty
  std::int64_t window = 0;  ///< the length of its attention windows, if sequences beyond it would need them; 0: none
};

/// Reads the model that a Hugging Face config.json describes. Strict. Throws Error{file} that lists all keys which are
/// unknown here and may matter, or ask for something that this program's models do not do.
ForeignModel read_hf_config(const std::filesystem::path& path);

/// The family that can express a model. Throws Error{file} that lists every key which no family supports; `whose`
/// begins the message.
Family family_of(const ModelConfig& model, const std::string& whose);

/// Text of a model's config.json, for transformers 4 and 5, with these ids of tokens by key.
std::string hf_config_text(Family family, const ModelConfig& model, DType type,
                           const nlohmann::ordered_json& token_ids);

}  // namespace tessera
