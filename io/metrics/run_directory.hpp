#pragma once
#include <filesystem>
#include <string>

#include "kernels/base/error.hpp"

namespace tessera {

/// Checks, without changing anything, whether the run directory exists or could be made. Adds a problem
/// (Exit::environment) for what is wrong: a file in its place, no permission, no room, a name too long. Local.
void check_run_directory(const std::filesystem::path& directory, Problems& problems);

/// Makes the run directory with its parents, and tries to write a file there before training starts. Adds a problem
/// (Exit::environment) for what is wrong: a file in its place, read-only, full; if MPI-IO will write, no byte-range
/// locks. Local.
enum class WrittenBy { system_calls, mpi_io };
void prepare_run_directory(const std::filesystem::path& directory, WrittenBy by, Problems& problems);

}  // namespace tessera
