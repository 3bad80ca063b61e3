#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/choices.hpp"
#include "core/state/state_dict.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/file.hpp"

namespace tessera {

/// A tensor of a checkpoint: canonical, wherever its parts lie.
struct StoredTensor {
  /// A dataset: all of the tensor, or one of its experts.
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

/// Whether a tensor is stored with a dataset an expert.
inline bool by_expert(const StateTensor& tensor, ExpertWeights experts) {
  return tensor.role == Role::expert && experts == ExpertWeights::discrete;
}
/// What a file will hold of a tensor, without digest and places.
StoredTensor planned(const StateTensor& tensor, ExpertWeights experts);

/// The dataset of a part.
std::string dataset_path(const hdf5::File& file, const StoredTensor& tensor, std::size_t part);

/// Whether a file says that it is one of a checkpoint.
bool is_of_checkpoint(const hdf5::File& file);

/// The table's row of a tensor.
hdf5::TableRow row_of(const StoredTensor& tensor);

/// The tensors that the table of a checkpoint's file names, as their datasets are, each of which is opened, all their
/// parts within the file's `bytes`. Throws Error{file} where table and datasets do not account for each other.
std::vector<StoredTensor> tensors_of(const hdf5::File& file, std::int64_t bytes);

/// The same by the table and the places of the file alone: no dataset is opened. True where the structure's digest is
/// the manifest's. Throws where no tensors can be such.
std::vector<StoredTensor> indexed_tensors(const hdf5::File& file, std::int64_t bytes);

/// The digest of a tensor's bytes as they lie in its file, which is read from its first to its last.
std::uint64_t digest_in(const PosixFile& file, const StoredTensor& tensor);

/// The digest of all bytes of a file that are no tensor's, as u8 with their places in the file for indices: of whatever
/// HDF5 wrote there, and of the index. Throws Error{file} where they cannot be read.
std::uint64_t structure_digest(const PosixFile& file, const std::vector<StoredTensor>& tensors);

/// Bytes that say the same to another rank of this run.
std::string to_bytes(const std::vector<StoredTensor>& tensors);
std::vector<StoredTensor> tensors_from(const std::string& bytes);

}  // namespace tessera
