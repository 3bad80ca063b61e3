#pragma once
#include <filesystem>
#include <optional>

namespace tessera {

/// The step that stands for a run directory.
enum class Chosen { newest, best };

/// The valid step of a run directory with the lowest evaluation loss, as its record of rows has it. Nothing if none of
/// its steps was evaluated. Throws Error{environment} if files cannot be read now. Local.
std::optional<std::filesystem::path> best_checkpoint(const std::filesystem::path& run);

/// The path that names weights: as given, or the best step of the run directory that it names. Throws Error{file} if
/// there is none. Local.
std::filesystem::path chosen_step(const std::filesystem::path& path, Chosen chosen);

}  // namespace tessera
