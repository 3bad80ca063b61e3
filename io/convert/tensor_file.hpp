#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/tensor.hpp"

namespace tessera {

/// A tensor in a file: one piece of it, row-major and little-endian.
struct SourceTensor {
  std::string name;  ///< a safetensors key, or an HDF5 path without its first '/'
  Shape shape;
  DType type = DType::f32;
  std::int64_t offset = 0;  ///< bytes from the start of the file
  std::string unreadable;   ///< why it cannot be read; empty: it can
};

/// The tensors of a safetensors or HDF5 file, in the order of their names. The file's name says which it is
/// (.safetensors, .h5, .hdf5); throws Error{file} where the file says otherwise, is damaged or cannot be read.
std::vector<SourceTensor> list_tensors(const std::filesystem::path& path);

}  // namespace tessera
