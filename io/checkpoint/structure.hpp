#pragma once
#include <cstdint>
#include <filesystem>
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
  std::int64_t offset;        ///< bytes from the start of the file
};

/// The datasets that a file of this name has, in their order; their offsets are not known yet.
std::vector<DatasetPlace> datasets_of(const std::string& name, std::span<const StateTensor> all, ExpertWeights experts);

/// An HDF5 file of a checkpoint in the making, by one rank: first its structure, last what the file says of itself.
/// Payload comes from whoever holds it, at the places, from when they are known.
struct CheckpointFile {
  std::string name;
  hdf5::File file;
  std::vector<DatasetPlace> places;
  std::vector<std::size_t> tensors;  ///< of the state: those that it holds, in order
  std::size_t width = 0;             ///< of the names in its table

  /// Makes it, empty.
  CheckpointFile(const std::filesystem::path& path, std::span<const StateTensor> all, ExpertWeights experts);

  /// Bytes of the file's payload and all that comes before it.
  std::int64_t end(std::span<const StateTensor> all) const;
};

/// At most the bytes that a file of this name will have; and of these, what comes after the payload.
std::int64_t room_for(const std::string& name, std::span<const StateTensor> all, const Origin& origin);
std::int64_t room_for_facts(const Origin& origin);

/// Datasets and attributes of the tensors that belong into the new file, and a table without rows.
void lay_out(CheckpointFile& out, std::span<const StateTensor> all, ExpertWeights experts);

/// The rows of its table; `digests` has one for each tensor of the state.
void write_table(CheckpointFile& out, std::span<const StateTensor> all, std::span<const std::uint64_t> digests);

/// Counters and origin; with them, and its table, the file is complete.
void describe(CheckpointFile& out, const StateCounters& counters, const std::string& content_digest,
              const Origin& origin);

/// Deck and manifest, the last files: with them the folder is a checkpoint, and all of it is on the disk. The HDF5
/// files named are there and closed.
void complete(const std::filesystem::path& folder, std::span<const char* const> names, const StateCounters& counters,
              const std::string& content_digest, const Origin& origin);

/// Throws Error{environment} where the disk of `folder` has no room for these tensors: "`what` needs ...".
void refuse_if_too_big(const std::filesystem::path& folder, std::span<const StateTensor> tensors,
                       const std::string& what);

}  // namespace tessera
