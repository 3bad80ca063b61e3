#include "io/convert/tensor_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "io/checkpoint/stored_tensor.hpp"
#include "io/convert/safetensors.hpp"
#include "io/files/access.hpp"
#include "io/hdf5/file.hpp"

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

bool named_as_hdf5(const std::filesystem::path& path) {
  return path.extension() == ".h5" || path.extension() == ".hdf5";
}

SourceTensor described(const hdf5::File& file, const std::string& path) {
  SourceTensor t;
  t.name = path;
  try {
    t.shape = Shape(file.dims(path));
    const hdf5::Dataset data = file.dataset(path);
    t.type = data.type;
    t.offset = data.offset;
  } catch (const Error& error) {
    if (error.code() == Exit::environment) throw;
    t.unreadable = "no contiguous little-endian dataset of fp32, bf16 or u8, of 1 to 3 axes";
  }
  return t;
}

/// Converts fp16 to fp32. A NaN keeps its mantissa bits.
float widened(std::uint16_t half) {
  const std::uint32_t sign = half & 0x8000u, exponent = half >> 10 & 31u, mantissa = half & 0x3FFu;
  constexpr std::uint32_t rebias = 127 - 15, none = 255;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (static_cast<float>(mantissa) * 0x1p-24f);
  const std::uint32_t widened = exponent == 31 ? none : exponent + rebias;
  return std::bit_cast<float>(sign << 16 | widened << 23 | mantissa << 13);
}

void read_halves(const PosixFile& file, std::int64_t offset, std::int64_t count, float* to) {
  // Halves are read into the second half of `to`, so that widening from the front never overwrites one not yet read.
  auto* const halves = reinterpret_cast<std::byte*>(to) + 2 * count;
  file.read(offset, halves, 2 * count);
  std::array<std::uint16_t, 1024> part;
  for (std::int64_t first = 0; first < count; first += std::ssize(part)) {
    const std::int64_t n = std::min(std::ssize(part), count - first);
    std::memcpy(part.data(), halves + 2 * first, static_cast<std::size_t>(2 * n));
    for (std::int64_t i = 0; i < n; ++i) to[first + i] = widened(part[static_cast<std::size_t>(i)]);
  }
}

std::vector<SourceTensor> list_hdf5(const std::filesystem::path& path) {
  if (!begins_as_hdf5(path)) throw Error(Exit::file, path.string() + ": is no HDF5 file, whatever its name says");
  std::vector<SourceTensor> list;
  const hdf5::File file = hdf5::File::open(path);
  for (const std::string& dataset : file.datasets()) list.push_back(described(file, dataset));
  const std::int64_t size = PosixFile(path, PosixFile::Mode::read).size();
  for (const SourceTensor& t : list)
    if (t.unreadable.empty() && t.offset + t.shape.elements() * size_of(t.type) > size)
      throw Error(Exit::file, path.string() + ": " + t.name + ": lies outside the file: it was truncated");
  return list;
}

}  // namespace

void read_elements(const PosixFile& file, const SourceTensor& tensor, std::int64_t first, std::int64_t count,
                   void* to) {
  if (tensor.encoding == Encoding::half)
    read_halves(file, tensor.offset + 2 * first, count, static_cast<float*>(to));
  else
    file.read(tensor.offset + first * size_of(tensor.type), to, count * size_of(tensor.type));
}

std::vector<SourceTensor> list_tensors(const std::filesystem::path& path) {
  std::vector<SourceTensor> list;
  if (entry_at(path) == Entry::folder)
    throw Error(Exit::file, path.string() + ": is a folder: name a .safetensors or .h5 file in it, or convert it by "
                                            "`tessera checkpoint convert` and name what that makes");
  if (named_as_hdf5(path))
    list = list_hdf5(path);
  else if (path.extension() == ".safetensors")
    list = list_safetensors(path);
  else
    throw Error(Exit::file, path.string() + ": neither .safetensors nor .h5 by its name");
  std::sort(list.begin(), list.end(), [](const SourceTensor& a, const SourceTensor& b) { return a.name < b.name; });
  return list;
}

void check_digests(const std::filesystem::path& path, const std::vector<SourceTensor>& tensors) {
  if (!named_as_hdf5(path)) return;
  const hdf5::File file = hdf5::File::open(path);
  if (!is_of_checkpoint(file)) return;
  std::set<std::int64_t> wanted;  // offsets, since a discrete expert is only a part of a stored tensor
  for (const SourceTensor& t : tensors) wanted.insert(t.offset);
  const PosixFile payload(path, PosixFile::Mode::read);
  for (const StoredTensor& stored : tensors_of(file, payload)) {
    const auto here = [&](const StoredTensor::Dataset& dataset) { return wanted.contains(dataset.offset); };
    if (std::ranges::any_of(stored.datasets, here) && digest_in(payload, stored) != stored.digest)
      throw Error(Exit::file, path.string() + ": " + stored.path() + " holds other bytes than were saved");
  }
}

}  // namespace tessera
