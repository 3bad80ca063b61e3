#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::hdf5 {

/// The paths of all datasets of a file, without the first '/', each object once. Throws Error{file} where the file
/// cannot be read as HDF5. Needs no MPI.
std::vector<std::string> list_datasets(const std::filesystem::path& path);

}  // namespace tessera::hdf5
