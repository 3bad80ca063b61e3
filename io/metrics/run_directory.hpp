#pragma once
#include <filesystem>
#include <string>

#include "kernels/base/error.hpp"

namespace tessera {

/// Makes the run directory, parents too, and proves that files can be written there. What is wrong (a file where a
/// directory should be, read-only, full) becomes a problem (Exit::environment) before training starts.
void prepare_run_directory(const std::filesystem::path& directory, Problems& problems);

/// Writes a whole text file: to a temporary name, synced, renamed. A failure is a problem (Exit::environment).
void write_text_file(const std::filesystem::path& path, const std::string& text, Problems& problems);

}  // namespace tessera
