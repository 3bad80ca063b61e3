#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"
#include "io/checkpoint/slabs.hpp"
#include "io/hdf5/file.hpp"

namespace tessera {

/// The HDF5 files of a checkpoint in the making, step by step as they are declared; payload, by whoever holds it, comes
/// between lay_out() and describe().
class CheckpointFiles {
 public:
  /// In `folder`, which is there: those of the first `count` of payload_files. What is referred to must outlive it.
  CheckpointFiles(std::filesystem::path folder, std::size_t count, const StateDict& state, const Origin& origin);

  /// Files without datasets, closed. By one process.
  void create() const;
  /// All space that they may need, so that no later write to them finds the disk full. By one process.
  void reserve() const;
  /// Opens them and makes datasets, their attributes, and tables without rows. By all ranks of `parallel`, which all
  /// know the tensors' places then.
  void lay_out(const hdf5::Parallel& parallel);
  void close();

  /// Digests of all tensors of the state.
  void take_digests(std::span<const std::uint64_t> digests);
  /// Opens the files and writes what they say of themselves: the rows of their tables, counters and origin. By one
  /// process.
  void describe();
  /// Closes them at the size that they have. By one process.
  void finish();
  /// Deck and manifest, the last files: with them the folder is a checkpoint, and all of it is on the disk. `derived`
  /// is a file that was made there of the others, or null. By one process, without HDF5.
  void complete(const char* derived) const;

  std::vector<StoredTensor> tensors;  ///< of the state, in its order
  std::string content_digest;         ///< once digests are there
  std::vector<std::filesystem::path> paths() const;
  hdf5::File& holding(const StoredTensor& tensor);  ///< while it is open
  StoredTensors stored() const;

 private:
  struct File {
    std::filesystem::path path;
    std::vector<std::size_t> tensors;
    std::size_t datasets = 0;
    std::size_t width = 0;  ///< of the names in its table
    std::optional<hdf5::File> open{};
  };
  std::string structure_of(const File& file) const;

  std::filesystem::path folder_;
  const StateDict& state_;
  const Origin& origin_;
  std::vector<File> files_;
};

/// Throws Error{environment} where the disk of `folder` has no room for these tensors: "`what` needs ...".
void refuse_if_too_big(const std::filesystem::path& folder, std::span<const StateTensor> tensors,
                       const std::string& what);

}  // namespace tessera
