#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"
#include "io/hdf5/file.hpp"

namespace tessera {

/// A dataset and its place in a file.
struct DatasetPlace {
  std::string path;
  std::size_t tensor;         ///< its index in the state
  std::int64_t first, count;  ///< elements of the tensor
  std::int64_t offset = -1;   ///< bytes from the start of the file; -1: lay_out() has yet to say
};

/// An HDF5 file of a checkpoint in the making: create(), lay_out(), payload from whoever holds it, describe().
struct CheckpointFile {
  std::filesystem::path path;
  std::vector<std::size_t> tensors;  ///< of the state: those that it holds, in order
  std::vector<DatasetPlace> places;
  std::size_t width = 0;             ///< of the names in its table
  std::optional<hdf5::File> file{};  ///< while it is open

  /// Of the state's tensors, those that belong into a file of this name.
  CheckpointFile(std::filesystem::path path, std::span<const StateTensor> all, ExpertWeights experts);

  std::string name() const { return path.filename().string(); }
  /// Bytes of the file's payload and all that comes before it.
  std::int64_t end(std::span<const StateTensor> all) const;
  /// At most the bytes that it will have.
  std::int64_t room(std::span<const StateTensor> all, const Origin& origin) const;
  void close();
};

/// The file without datasets, closed. By one process.
void create(const CheckpointFile& out);

/// Opens it, for payload too, and makes datasets and attributes of its tensors, and a table without rows. By all ranks
/// of `parallel`, which all know the places then.
void lay_out(CheckpointFile& out, std::span<const StateTensor> all, ExpertWeights experts,
             const hdf5::Parallel& parallel);

/// Opens it and writes what the file says of itself: the rows of its table, `digests` having one for each tensor of the
/// state, counters and origin. With them it is complete. By one process.
void describe(CheckpointFile& out, std::span<const StateTensor> all, std::span<const std::uint64_t> digests,
              const StateCounters& counters, const std::string& content_digest, const Origin& origin);

/// Deck and manifest, the last files: with them the folder is a checkpoint, and all of it is on the disk. The HDF5
/// files are there and closed, and so is `derived`, which may be null. Without HDF5.
void complete(const std::filesystem::path& folder, std::span<const CheckpointFile> files, const char* derived,
              const StateDict& state, const std::string& content_digest, const Origin& origin);

/// Throws Error{environment} where the disk of `folder` has no room for these tensors: "`what` needs ...".
void refuse_if_too_big(const std::filesystem::path& folder, std::span<const StateTensor> tensors,
                       const std::string& what);

}  // namespace tessera
