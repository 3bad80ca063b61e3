#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/convert/tensor_file.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

/// The tensors of a safetensors file, sorted by name; F16 is read as fp32. Tensors of types other than F32, F16, BF16
/// and U8, or of more than four axes, are listed as unreadable. Throws Error{file} with path and rule if header, sizes
/// or offsets violate the format.
std::vector<SourceTensor> list_safetensors(const std::filesystem::path& path);

/// Writes a new safetensors file: the header first, then payload in any order and in any pieces. The caller renames the
/// file once finish() has returned.
class SafetensorsWriter {
 public:
  /// Takes names, shapes and types (f32, bf16, u8, codes of E4M3) of `tensors`, assigns their offsets, and writes the
  /// header with further `metadata`.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SourceTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// Writes bytes of tensor `index`, from its byte `begin` on.
  void write(std::size_t index, std::int64_t begin, const void* from, std::int64_t bytes);
  /// Synchronises the file with the disk. Every byte must have been written.
  void finish();

  const std::vector<SourceTensor>& tensors() const { return tensors_; }

 private:
  std::vector<SourceTensor> tensors_;
  std::filesystem::path path_;
  PosixFile file_;
  std::int64_t missing_ = 0;
};

}  // namespace tessera
