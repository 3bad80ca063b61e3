#pragma once
#include <filesystem>
#include <string>

#include "io/convert/hf_names.hpp"

namespace tessera {

inline constexpr const char* hf_config_file = "config.json";

/// A family, and a run of such a model: besides `model`, the least that a deck must say.
struct ForeignModel {
  Family family = Family::gpt2;
  RunConfig config;
};

/// The model that a Hugging Face config.json describes. Strict: whatever it says that this program's models do not do,
/// or that is unknown here, is refused by the name of its key, all at once (Error{file}).
ForeignModel read_hf_config(const std::filesystem::path& path);

/// The family that expresses a model; Error{file} names every key that no family has.
Family family_of(const ModelConfig& model, const std::string& whose);

/// config.json of a model, as transformers 4 and 5 read it.
std::string hf_config_text(Family family, const ModelConfig& model, DType type);

}  // namespace tessera
