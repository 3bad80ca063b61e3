#include "io/hdf5/listing.hpp"

#include <hdf5.h>

#include <algorithm>

#include "io/hdf5/file.hpp"

namespace tessera::hdf5 {

namespace {

std::vector<std::int64_t> dims_of(hid_t file, const char* name) {
  const Object data(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  if (!data) return {};
  const Object space(H5Dget_space(data.id()), H5Sclose);
  hsize_t dims[H5S_MAX_RANK];
  const int rank = space ? H5Sget_simple_extent_dims(space.id(), dims, nullptr) : 0;
  return {dims, dims + std::max(rank, 0)};
}

}  // namespace

std::vector<ListedDataset> list_datasets(const std::filesystem::path& path) {
  prepare_library();
  const Object file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  std::vector<ListedDataset> list;
  const auto keep = [](hid_t root, const char* name, const H5O_info_t* info, void* out) -> herr_t {
    if (info->type == H5O_TYPE_DATASET)
      static_cast<std::vector<ListedDataset>*>(out)->push_back({name, dims_of(root, name)});
    return 0;
  };
  if (!file || H5Ovisit(file.id(), H5_INDEX_NAME, H5_ITER_INC, keep, &list) < 0)
    throw Error(Exit::file, path.string() + ": cannot be read as HDF5: it is damaged");
  return list;
}

}  // namespace tessera::hdf5
