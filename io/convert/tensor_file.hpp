#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/files/posix_file.hpp"
#include "kernels/base/tensor.hpp"

namespace tessera {

/// Encoding of a tensor's elements in a file: plain, in their type; or half, fp32 values stored as IEEE fp16 (exactly
/// representable in fp32).
/// Or e4m3, bytes that are codes of E4M3; other tensors hold their scales.
enum class Encoding { plain, half, e4m3 };

/// A tensor in a file: one contiguous piece, row-major and little-endian.
struct SourceTensor {
  std::string name;  ///< a safetensors key, or an HDF5 path without its first '/'
  Shape shape;
  DType type = DType::f32;  ///< type in which it is read
  std::int64_t offset = 0;  ///< bytes from the start of the file
  std::string unreadable;   ///< why it cannot be read; empty if it can
  Encoding encoding = Encoding::plain;
};

/// Reads elements [first, first + count) of a tensor of `file`, in its type. Throws Error{file}.
void read_elements(const PosixFile& file, const SourceTensor& tensor, std::int64_t first, std::int64_t count, void* to);

/// The tensors of a safetensors or HDF5 file, sorted by name. The extension of `path` gives the format (.safetensors,
/// .h5, .hdf5). Throws Error{file} if the file has another format, is damaged or cannot be read.
std::vector<SourceTensor> list_tensors(const std::filesystem::path& path);

/// Verifies `tensors`, some of a file's, against the digests that the file stores, as a checkpoint's do; throws
/// Error{file} if one differs. Does nothing for files without digests.
void check_digests(const std::filesystem::path& path, const std::vector<SourceTensor>& tensors);

}  // namespace tessera
