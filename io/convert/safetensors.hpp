#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "io/convert/tensor_file.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

/// The tensors of a safetensors file by name; F16 is read as fp32. Types other than F32, F16, BF16 and U8, and more
/// than four axes, are listed as unreadable. Throws Error{file} with path and rule where header, sizes or offsets are
/// not those of the format.
std::vector<SourceTensor> list_safetensors(const std::filesystem::path& path);

/// A new safetensors file: the header first, then payload in any order and in any pieces. The caller renames it once
/// finish() has returned.
class SafetensorsWriter {
 public:
  /// Names, shapes and types count; offsets are assigned. f32, bf16 and u8.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SourceTensor> tensors);

  /// Bytes of tensor `index`, from byte `begin` of it.
  void write(std::size_t index, std::int64_t begin, const void* from, std::int64_t bytes);
  /// Makes the file last. Every byte must have been written.
  void finish();

  const std::vector<SourceTensor>& tensors() const { return tensors_; }

 private:
  std::vector<SourceTensor> tensors_;
  std::filesystem::path path_;
  PosixFile file_;
  std::int64_t missing_ = 0;
};

}  // namespace tessera
