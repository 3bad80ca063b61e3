#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/layout/ranks.hpp"

namespace tessera {

/// Copy-engine collectives of the ranks of one communicator. Each rank copies its parts into the buffers of the others,
/// between two synchronisations on the stream, and no multiprocessor takes part. All ranks must be on one host, on GPUs
/// that reach each other's memory. Parts may differ in size and buffers may lie anywhere in memory of cudaMalloc, which
/// NCCL's own copy-engine collectives do not take.
class CopyEngines {
 public:
  /// Gathers bytes of every rank, as many from each, in rank order. Collective over the communicator.
  using Gather = std::function<std::vector<std::byte>(std::span<const std::byte>)>;

  /// `host` names this rank's host. Collective over the communicator, as are open() and the destructor. The stream must
  /// have ended its operations before the destructor.
  CopyEngines(const RankIn& place, cudaStream_t stream, const std::string& host, Gather gather);
  /// Whether the driver has the stream memory operations that these collectives wait by. Local.
  static bool supported();
  ~CopyEngines();
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  /// Maps the receive buffers into the address spaces of all ranks and fills Exchange::peers. Leaves the exchanges as
  /// they are if a rank cannot.
  void open(std::span<Exchange* const> exchanges);
  bool any_open() const { return !opened_.empty(); }
  /// Whether start() can run an operation: an all_gather or all_to_all of opened exchanges. The same on all ranks.
  static bool takes(const Operation& operation);
  /// Enqueues an operation on the stream, which may be capturing. Local: the GPUs wait for each other, not the hosts.
  cudaError_t start(const Operation& operation) const;

  using Addresses = std::vector<std::byte*>;  ///< of one buffer, by rank
  /// Addresses of every rank's `memory` in this process; nothing, on all ranks, if a rank cannot reach another's.
  /// Collective over the communicator.
  Addresses reach(void* memory);
  /// The two synchronisations of an operation: all buffers may be written; all parts have been written.
  enum class Moment { ready, complete };
  /// Barrier of the streams of all ranks: a ready one, then a complete one, by turns.
  cudaError_t meet(Moment moment) const;

 private:
  struct Exported;

  std::optional<std::vector<Addresses>> share(std::span<void* const> mine);
  std::byte* import(int rank, const Exported& exported);
  bool agreed(bool mine) const;
  cudaError_t copy(const Operation& operation, int to) const;
  cudaError_t signal(Moment moment) const;
  cudaError_t wait(Moment moment) const;

  RankIn place_;
  cudaStream_t stream_;
  Gather gather_;
  std::uint32_t* flags_ = nullptr;  ///< [2, size] by Moment and signalling rank; then a constant 1, which signals copy
  Addresses flags_of_;              ///< `flags_` of every rank; empty if copy engines cannot be used
  std::map<std::pair<int, std::string>, void*> imported_;  ///< memory of other ranks, by rank and handle
  std::deque<Addresses> opened_;                           ///< what Exchange::peers refer to
};

}  // namespace tessera
