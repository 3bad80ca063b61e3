#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"
#include "io/hdf5/file.hpp"
#include "kernels/base/tensor.hpp"

namespace tessera {

class PayloadFile;

/// A tensor of a checkpoint: canonical, wherever its parts lie.
struct StoredTensor {
  struct Part {
    std::int64_t first, count;  ///< elements of the canonical tensor
    std::int64_t offset;        ///< bytes in the file
    bool operator==(const Part&) const = default;
  };
  std::string slot, name;
  Shape shape;
  DType type = DType::f32;
  std::string axes;
  std::uint64_t digest = 0;
  std::string tied_to;      ///< the further name that the model uses it under, or empty
  std::vector<Part> parts;  ///< ascending, without gaps

  std::string path() const { return "/" + slot + "/" + name; }
  bool operator==(const StoredTensor&) const = default;
};

/// Whether a file says that it is one of a checkpoint.
bool is_of_checkpoint(const hdf5::File& file);

/// With the name and the digest of a row and nothing else yet. Throws Error{file} where it names none.
StoredTensor named(const hdf5::File& file, const hdf5::TableRow& row);

/// The tensors that the table of a checkpoint's file names, as their datasets are, each of which is opened, all their
/// parts within the file's `bytes`. Throws Error{file} where table and datasets do not account for each other.
std::vector<StoredTensor> tensors_of(const hdf5::File& file, std::int64_t bytes);

/// The digest of a tensor's bytes as they lie in its file, which is read from its first to its last.
std::uint64_t digest_in(const PayloadFile& file, const StoredTensor& tensor);

/// Throws Error{file} unless counters and root attributes of a file are those of the manifest: both are of one save.
void check_attributes(const hdf5::File& file, const Manifest& manifest);

/// Bytes that say the same to another rank of this run.
std::string to_bytes(const std::vector<StoredTensor>& tensors);
std::vector<StoredTensor> tensors_from(const std::string& bytes);

}  // namespace tessera
