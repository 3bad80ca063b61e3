#include "io/hdf5/listing.hpp"

#include <hdf5.h>

#include "io/hdf5/file.hpp"

namespace tessera::hdf5 {

std::vector<std::string> list_datasets(const std::filesystem::path& path) {
  prepare_library();
  const Object file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  std::vector<std::string> paths;
  const auto keep = [](hid_t, const char* name, const H5O_info_t* info, void* out) -> herr_t {
    if (info->type == H5O_TYPE_DATASET) static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  if (!file || H5Ovisit(file.id(), H5_INDEX_NAME, H5_ITER_INC, keep, &paths) < 0)
    throw Error(Exit::file, path.string() + ": cannot be read as HDF5: it is damaged");
  return paths;
}

}  // namespace tessera::hdf5
