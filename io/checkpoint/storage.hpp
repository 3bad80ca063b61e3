#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/layout/param.hpp"
#include "io/checkpoint/companions.hpp"

namespace tessera {

inline constexpr const char* model_file = "model.h5";
inline constexpr const char* optimizer_file = "optimizer.h5";
inline constexpr const char* quantized_file = "quantized.h5";  ///< made from model_file; holds no tensor of the state
inline constexpr const char* deck_file = "deck.yaml";
inline constexpr const char* manifest_file = "manifest.json";

/// The files with payload, and the index of the one that holds a slot.
inline constexpr const char* payload_files[] = {model_file, optimizer_file};
inline std::size_t file_index(const std::string& slot) { return slot == "model" ? 0 : 1; }
inline const char* file_of(const std::string& slot) { return payload_files[file_index(slot)]; }

/// The path of one expert's dataset, if experts are stored one by one: "...experts.up.weight" becomes
/// "...experts.3.up.weight". Empty for a path that is no expert's projection.
std::string expert_path(const std::string& path, std::int64_t expert);

/// The meaning of a dataset's axes, such as "expert,out,in".
std::string axes_of(Role role, int rank);
std::string name_of_role(Role role);
/// The role of that name; nothing if there is none.
std::optional<Role> role_named(const std::string& name);

}  // namespace tessera
