#include "io/convert/tensor_file.hpp"

#include <algorithm>
#include <cstring>

#include "io/checkpoint/posix_file.hpp"
#include "io/convert/safetensors.hpp"
#include "io/hdf5/file.hpp"
#include "io/hdf5/listing.hpp"

namespace tessera {
namespace {

bool begins_as_hdf5(const std::filesystem::path& path) {
  static constexpr char signature[] = "\x89HDF\r\n\x1a\n";
  const PosixFile file(path, PosixFile::Mode::read);
  char first[8] = {};
  if (file.size() < std::ssize(first)) return false;
  file.read(0, first, sizeof first);
  return std::memcmp(first, signature, sizeof first) == 0;
}

SourceTensor described(const hdf5::File& file, const std::string& path) {
  SourceTensor t;
  t.name = path;
  try {
    const hdf5::Dataset data = file.dataset(path);
    t.shape = data.shape;
    t.type = data.type;
    t.offset = data.offset;
  } catch (const Error&) {
    t.unreadable = "not a contiguous little-endian fp32, bf16 or u8 dataset of 1 to 3 axes";
  }
  return t;
}

std::vector<SourceTensor> list_hdf5(const std::filesystem::path& path) {
  if (!begins_as_hdf5(path)) throw Error(Exit::file, path.string() + ": is no HDF5 file, whatever its name says");
  std::vector<SourceTensor> list;
  const hdf5::File file = hdf5::File::open(path);
  for (const std::string& name : hdf5::list_datasets(path)) list.push_back(described(file, name));
  const std::int64_t size = PosixFile(path, PosixFile::Mode::read).size();
  for (const SourceTensor& t : list)
    if (t.unreadable.empty() && t.offset + t.shape.elements() * size_of(t.type) > size)
      throw Error(Exit::file, path.string() + ": " + t.name + ": lies outside the file: it was truncated");
  return list;
}

}  // namespace

std::vector<SourceTensor> list_tensors(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  std::vector<SourceTensor> list;
  if (extension == ".h5" || extension == ".hdf5")
    list = list_hdf5(path);
  else if (extension == ".safetensors")
    list = list_safetensors(path);
  else
    throw Error(Exit::file, path.string() + ": neither .safetensors nor .h5 by its name");
  std::sort(list.begin(), list.end(), [](const SourceTensor& a, const SourceTensor& b) { return a.name < b.name; });
  return list;
}

}  // namespace tessera
