#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "io/hdf5/file.hpp"
#include "kernels/base/tensor.hpp"

namespace tessera {

/// "tensors_00000100.h5": the file of debug.tensors for a step, in the run directory.
std::string tensor_file(std::int64_t step);

/// A file of named tensors, for h5py and others: attributes `step` and, of codes, scales and amaxes, `format`; bf16 is
/// stored as checkpoints store it. It has its name once it is whole. Throws Error{environment}. Local.
class TensorFile {
 public:
  TensorFile(std::filesystem::path path, std::int64_t step);
  void add(const std::string& name, const Shape& shape, DType type, const std::string& format);
  /// Writes elements from the one of number `first` on.
  void write(const std::string& name, DType type, std::int64_t first, std::string& bytes);
  void close();

 private:
  std::filesystem::path path_, unfinished_;
  hdf5::File file_;
};

}  // namespace tessera
