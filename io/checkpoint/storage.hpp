#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/choices.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

inline constexpr const char* model_file = "model.h5";
inline constexpr const char* optimizer_file = "optimizer.h5";
inline constexpr const char* quantized_file = "quantized.h5";  ///< derived from model_file: no tensor of it is state
inline constexpr const char* deck_file = "deck.yaml";
inline constexpr const char* manifest_file = "manifest.json";
inline constexpr const char* tokenizer_file = "tokenizer.json";
inline constexpr const char* integrity_table = "/integrity/table";
inline constexpr const char* integrity_places = "/integrity/places";

/// The file that holds a slot.
inline const char* file_of(const std::string& slot) { return slot == "model" ? model_file : optimizer_file; }

/// One dataset of a tensor, as it will be written.
struct StoredPiece {
  std::string path;
  Shape shape;
  std::int64_t first = 0;  ///< index of its first element in the canonical tensor
  int expert = -1;         ///< of a discrete projection, else -1
};

/// Where one expert of a projection lies when experts are stored one by one: "...experts.up.weight" becomes
/// "...experts.3.up.weight". Empty for a path that is no projection's.
std::string expert_path(const std::string& path, std::int64_t expert);

/// The datasets of a tensor: itself, or one an expert where experts are stored one by one.
std::vector<StoredPiece> pieces_of(const StateTensor& tensor, ExpertWeights experts);

/// "expert,out,in": what the axes of a dataset mean.
std::string axes_of(Role role, int rank);
std::string name_of_role(Role role);
/// Nothing: there is no such role.
std::optional<Role> role_named(const std::string& name);

}  // namespace tessera
