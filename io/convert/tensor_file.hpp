#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/files/posix_file.hpp"
#include "kernels/base/tensor.hpp"

namespace tessera {

/// How a file holds elements: as their type, or fp32 values as IEEE halves, all of which fp32 has.
enum class Encoding { plain, half };

/// A tensor in a file: one piece of it, row-major and little-endian.
struct SourceTensor {
  std::string name;  ///< a safetensors key, or an HDF5 path without its first '/'
  Shape shape;
  DType type = DType::f32;  ///< what it is read as
  std::int64_t offset = 0;  ///< bytes from the start of the file
  std::string unreadable;   ///< why it cannot be read; empty: it can
  Encoding encoding = Encoding::plain;
};

/// Elements [first, first + count) of a tensor of `file`, in its type. Throws Error{file}.
void read_elements(const PosixFile& file, const SourceTensor& tensor, std::int64_t first, std::int64_t count, void* to);

/// The tensors of a safetensors or HDF5 file, in the order of their names. The file's name says which it is
/// (.safetensors, .h5, .hdf5); throws Error{file} where the file says otherwise, is damaged or cannot be read.
std::vector<SourceTensor> list_tensors(const std::filesystem::path& path);

/// Where the file says which digests its tensors must have, as those of checkpoints do: throws Error{file} unless the
/// bytes of `tensors`, which are some of it, have them.
void check_digests(const std::filesystem::path& path, const std::vector<SourceTensor>& tensors);

}  // namespace tessera
