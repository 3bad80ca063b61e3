#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/choices.hpp"
#include "core/state/state_dict.hpp"
#include "io/checkpoint/integrity_table.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/file.hpp"

namespace tessera {

/// A tensor of a checkpoint in canonical shape, and the datasets that hold it.
struct StoredTensor {
  /// A dataset of the file: the whole tensor, or one of its experts.
  struct Dataset {
    std::int64_t first, count;  ///< elements of the canonical tensor
    std::int64_t offset;        ///< bytes in the file
    std::int64_t end() const { return first + count; }
    bool operator==(const Dataset&) const = default;
  };
  std::string slot, name;
  Shape shape;
  DType type = DType::f32;
  std::string axes;
  std::uint64_t digest = 0;
  std::string tied_to;      ///< the other name under which the model uses it, or empty
  std::vector<Dataset> datasets;  ///< ascending, without gaps

  std::string path() const { return "/" + slot + "/" + name; }
  bool operator==(const StoredTensor&) const = default;
};

/// Whether each expert of a tensor is stored in a dataset of its own.
inline bool by_expert(const StateTensor& tensor, ExpertWeights experts) {
  return tensor.role == Role::expert && experts == ExpertWeights::discrete;
}
/// The stored form of a state's tensor, without digest and offsets.
StoredTensor planned(const StateTensor& tensor, ExpertWeights experts);

/// The path of a tensor's dataset, by its number among them.
std::string dataset_path(const hdf5::File& file, const StoredTensor& tensor, std::size_t dataset);

/// Whether a file's attributes say that it belongs to a checkpoint.
bool is_of_checkpoint(const hdf5::File& file);

/// The row of the integrity table that describes a tensor.
IntegrityRow row_of(const StoredTensor& tensor);

/// The tensors that a file's table names; `payload` is the same file. If the digest of its structure is the one that
/// the manifest has `saved`, the file's index tells where they lie. Otherwise every dataset is opened, and an error
/// names the one that is damaged. Throws Error{file} if table and datasets do not account for each other, or if a
/// tensor reaches beyond the file. Throws Error{environment} if it cannot be read now.
std::vector<StoredTensor> tensors_of(const hdf5::File& file, const PosixFile& payload,
                                     const std::optional<std::string>& saved = std::nullopt);

/// The digest of a tensor's bytes as they lie in the file. Reads all of them.
std::uint64_t digest_in(const PosixFile& file, const StoredTensor& tensor);

/// The digest of all bytes of a file that belong to no tensor (HDF5's own, and the index), as u8 with their offsets for
/// indices. Throws Error{file} if they cannot be read.
std::uint64_t structure_digest(const PosixFile& file, const std::vector<StoredTensor>& tensors);

/// Serialises tensors for another rank of this run.
std::string to_bytes(const std::vector<StoredTensor>& tensors);
std::vector<StoredTensor> tensors_from(const std::string& bytes);

}  // namespace tessera
