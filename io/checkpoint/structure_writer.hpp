#pragma once
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/comm/control.hpp"
#include "io/checkpoint/structure.hpp"

namespace tessera {

/// Writes the structure of a checkpoint's files on a thread of rank 0, which HDF5 has to itself, and broadcasts where
/// datasets lie, some at a time: payload need not wait until ten thousand of them are made.
class StructureWriter {
 public:
  struct Placed {
    std::size_t file;  ///< of `names`
    DatasetPlace place;
  };

  /// `files` are those of `names`, open and empty, on rank 0, which leaves them alone until finish(); none elsewhere.
  /// Local.
  StructureWriter(std::span<CheckpointFile> files, std::span<const char* const> names, std::span<const StateTensor> all,
            ExpertWeights experts, Control& control);
  ~StructureWriter();
  StructureWriter(const StructureWriter&) = delete;
  StructureWriter& operator=(const StructureWriter&) = delete;

  /// The next datasets in the order of files; none when all have been told, or when there will be no more. Collective
  /// over the world.
  std::span<const Placed> next();
  /// Waits for the rest of the structure; throws what kept it from being made. Local.
  void finish();

 private:
  void make(std::span<CheckpointFile> files, std::span<const StateTensor> all, ExpertWeights experts);
  std::string made();

  Control& control_;
  std::vector<Placed> datasets_;
  std::size_t told_ = 0;

  // Of rank 0.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> offsets_;  ///< guarded, as is the next
  bool ended_ = false;
  std::exception_ptr failure_;
  std::jthread maker_;
};

}  // namespace tessera
