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

/// The HDF5 files of a checkpoint that is being written. Steps are called in the order of declaration; payload is
/// written, by whoever holds it, between lay_out() and describe().
class CheckpointFiles {
 public:
  /// The first `count` of payload_files in `folder`, which exists. `state` and `origin` must outlive this object.
  CheckpointFiles(std::filesystem::path folder, std::size_t count, const StateDict& state, const Origin& origin);

  /// Makes the files without datasets, and closes them. By one process.
  void create() const;
  /// Reserves all space that the files may need, so that no later write finds the disk full. By one process.
  void reserve() const;
  /// Opens the files and adds datasets, attributes, and tables without rows. Afterwards all ranks know the tensors'
  /// places. Collective over the ranks of `parallel`.
  void lay_out(const hdf5::Parallel& parallel);
  void close();

  /// Sets the digests of all tensors of the state.
  void take_digests(std::span<const std::uint64_t> digests);
  /// Opens the files and writes the rows of their tables, counters and origin, which completes their structure. By one
  /// process.
  void describe();
  /// Closes the files and gives back space reserved beyond their ends. By one process.
  void finish();
  /// Writes deck and manifest, the last files, and flushes: with them the folder is a checkpoint. `derived`: a file
  /// that was made there from the others, or null. By one process, without HDF5.
  void complete(const char* derived) const;

  std::vector<StoredTensor> tensors;                        ///< of the state, in its order
  std::string content_digest;                               ///< valid once digests are set
  std::vector<PosixFile> open(PosixFile::Mode mode) const;  ///< the files, for payload. Local.
  std::vector<hdf5::File*> opened();                        ///< the files that are open as HDF5
  StoredTensors stored() const;

 private:
  struct File {
    std::filesystem::path path;
    std::vector<std::size_t> tensors;
    std::size_t datasets = 0;
    std::size_t width = 0;  ///< room for names in its table
    std::optional<hdf5::File> open{};
  };
  std::string structure_of(const File& file) const;

  std::filesystem::path folder_;
  const StateDict& state_;
  const Origin& origin_;
  std::vector<File> files_;
};

}  // namespace tessera
