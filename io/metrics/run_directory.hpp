#pragma once
#include <filesystem>
#include <string>

#include "kernels/base/error.hpp"

namespace tessera {

/// Whether the run directory is there or could be made, as far as can be told without touching anything: what is wrong
/// (a file where a directory should be, no permission, no room, a name too long) becomes a problem (Exit::environment).
void check_run_directory(const std::filesystem::path& directory, Problems& problems);

/// Makes the run directory, parents too, and proves that files can be written there. What is wrong (a file where a
/// directory should be, read-only, full; where MPI-IO is to write, no locks of a file's parts) becomes a problem
/// (Exit::environment) before training starts.
enum class WrittenBy { system_calls, mpi_io };
void prepare_run_directory(const std::filesystem::path& directory, WrittenBy by, Problems& problems);

}  // namespace tessera
