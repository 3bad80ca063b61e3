#include "io/hdf5/parallel.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>

#include <utility>
#include <vector>

#include "core/comm/mpi_handle.hpp"
#include "io/hdf5/file.hpp"

namespace tessera::hdf5 {

struct Parallel::Handles {
  MPI_Info info = MPI_INFO_NULL;
  Object transfers[2];
  ~Handles() {
    if (info != MPI_INFO_NULL) MPI_Info_free(&info);
  }
};

Parallel::Parallel(Control& control, Hints hints)
    : control_(&control), hints_(std::move(hints)), handles_(std::make_unique<Handles>()) {
  prepare_library();
  if (!hints_.empty()) MPI_Info_create(&handles_->info);
  for (const auto& [name, value] : hints_) MPI_Info_set(handles_->info, name.c_str(), value.c_str());
  for (const Transfer transfer : {Transfer::write, Transfer::read}) {
    const auto i = static_cast<int>(transfer);
    collective_[i] = asks_for("collective_buffering", "true") ||
                     asks_for(transfer == Transfer::write ? "romio_cb_write" : "romio_cb_read", "enable");
    handles_->transfers[i] = Object(H5Pcreate(H5P_DATASET_XFER), H5Pclose);
    H5Pset_dxpl_mpio(handles_->transfers[i].id(), collective_[i] ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
  }
}

Parallel::Parallel() : handles_(std::make_unique<Handles>()) { prepare_library(); }
Parallel::~Parallel() = default;

const Parallel& Parallel::alone() {
  static const Parallel instance;
  return instance;
}

bool Parallel::asks_for(const char* hint, const char* value) const {
  const auto found = hints_.find(hint);
  return found != hints_.end() && found->second == value;
}

bool Parallel::through_mpi_io() const {
  int begun = 0, over = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&over);
  return begun && !over;
}

std::string Parallel::name_of(const std::filesystem::path& file) const {
#ifdef MPICH_VERSION
  constexpr bool romio = true;
#else
  constexpr bool romio = false;
#endif
  const bool colon = file.string().find(':') != std::string::npos;
  return (romio && colon && through_mpi_io() ? "ufs:" : "") + file.string();
}

void Parallel::add_to(Id access) const {
  if (through_mpi_io())
    H5Pset_fapl_mpio(access, control_ ? communicator_of(*control_) : MPI_COMM_SELF, handles_->info);
}

Parallel::Id Parallel::properties(Transfer transfer) const {
  const Object& made = handles_->transfers[static_cast<int>(transfer)];
  return made ? made.id() : H5P_DEFAULT;
}

/// A file that MPI-IO has opened lists the hints that it goes by.
void Parallel::tell_unknown(Id file) const {
  void* handle = nullptr;
  if (std::exchange(told_, true) || !first() || hints_.empty() ||
      H5Fget_vfd_handle(file, H5P_DEFAULT, &handle) < 0)
    return;
  MPI_Info used = MPI_INFO_NULL;
  if (MPI_File_get_info(*static_cast<MPI_File*>(handle), &used) != MPI_SUCCESS) return;
  std::vector<std::string> unknown;
  for (const auto& [name, value] : hints_) {
    int length = 0, known = 0;
    MPI_Info_get_valuelen(used, name.c_str(), &length, &known);
    if (!known) unknown.push_back(name);
  }
  MPI_Info_free(&used);
  if (!unknown.empty())
    fmt::print(stderr, "checkpoint.mpio_hints: the MPI-IO of this machine does not know {} and goes on without\n",
               fmt::join(unknown, ", "));
}

}  // namespace tessera::hdf5
