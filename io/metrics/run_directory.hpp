#pragma once
#include <filesystem>
#include <string>

#include "kernels/base/error.hpp"

namespace tessera {

/// Checks, without changing anything, whether the run directory exists or could be made. Adds a problem for what is
/// wrong. Exit::environment: a file in its place, no permission, no room, a name too long. Exit::file: a folder of
/// another kind, such as a checkpoint or a Hugging Face folder. Local.
void check_run_directory(const std::filesystem::path& directory, Problems& problems);

/// Makes the run directory with its parents, and tries to write a file there before training starts. Adds a problem
/// for what check_run_directory() finds, and (Exit::environment) for a place that is read-only or full or, if MPI-IO
/// will write, keeps no byte-range locks. Local.
enum class WrittenBy { system_calls, mpi_io };
void prepare_run_directory(const std::filesystem::path& directory, WrittenBy by, Problems& problems);

}  // namespace tessera
