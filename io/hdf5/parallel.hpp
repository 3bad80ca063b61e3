#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "core/comm/control.hpp"

namespace tessera::hdf5 {

/// How ranks open one file: with HDF5's MPI-IO driver, on a communicator of its own. Every call of a File that all of
/// them opened so is collective over the world. Not so those that read structure, and write() and read() of independent
/// transfers.
class Parallel {
 public:
  using Hints = std::map<std::string, std::string>;
  enum class Transfer { write, read };

  /// `hints` are for MPI-IO; those that it does not know are told of on stderr, once, when it has opened a file.
  /// `control` must outlive it. Local.
  Parallel(Control& control, Hints hints);
  /// This process alone. HDF5 then puts structure where it does for all ranks together, which its other drivers do
  /// not. Without MPI it is the system's own driver. Local.
  static const Parallel& alone();
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  /// Collective transfers are called by all ranks alike, by those without elements too. They are for hints that ask for
  /// collective buffering (collective_buffering: true; romio_cb_write, romio_cb_read: enable). Without it the ranks of
  /// a dataset need not wait for each other, which they do for longer than writing takes where they share cores.
  bool collective(Transfer transfer) const { return collective_[static_cast<int>(transfer)]; }
  /// The number of calls of the rank that makes most for a dataset, if transfers are collective; else `mine`.
  std::int64_t most(Transfer transfer, std::int64_t mine) const {
    return collective(transfer) ? control_->max(mine) : mine;
  }

  /// A call of HDF5 in which it may wait for other ranks, watched while this lives. Local.
  Control::LibraryCall watched(const char* what) const { return {control_, what}; }

 private:
  friend class File;
  using Id = std::int64_t;
  Parallel();
  bool asks_for(const char* hint, const char* value) const;
  bool through_mpi_io() const;  ///< MPI has begun and not ended
  /// A file's name as its driver takes it: ROMIO, the MPI-IO of MPICH, reads what precedes a colon as the kind of file
  /// system.
  std::string name_of(const std::filesystem::path& file) const;
  void add_to(Id access) const;            ///< of a file
  Id properties(Transfer transfer) const;  ///< of a transfer
  bool first() const { return control_ && control_->rank() == 0; }
  void tell_unknown(Id file) const;

  struct Handles;
  Control* control_ = nullptr;  ///< null: this process alone
  Hints hints_;
  bool collective_[2] = {};
  std::unique_ptr<Handles> handles_;
  mutable bool told_ = false;
};

}  // namespace tessera::hdf5
