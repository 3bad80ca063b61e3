#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::hdf5 {

struct ListedDataset {
  std::string path;  ///< without the first '/'
  std::vector<std::int64_t> dims;
};

/// All datasets of a file, each object once. Throws Error{file} where the file cannot be read as HDF5. Needs no MPI.
std::vector<ListedDataset> list_datasets(const std::filesystem::path& path);

}  // namespace tessera::hdf5
