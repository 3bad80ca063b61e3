#pragma once
#include <functional>
#include <vector>

#include "io/checkpoint/slabs.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/file.hpp"

namespace tessera {

/// Two ways of moving payload between files and blocks of memory. In both the disk works on some blocks while the
/// caller's `work` fills or empties others.

/// Fills or takes a slab's elements, which lie at `place` in a block.
using SlabWork = std::function<void(const Slab& slab, std::byte* place)>;

/// Where the system's calls run: in tasks beside the calling thread; or on that itself, if it runs beside training.
enum class Calls { in_tasks, on_calling_thread };

/// By the system's own calls. `work` runs on the calling thread in the order of slabs. Local.
void write_payload(const std::vector<Window>& windows, std::vector<PosixFile>& files, Calls calls,
                   const SlabWork& work);
void read_payload(const std::vector<Window>& windows, const std::vector<PosixFile>& files, const SlabWork& work);

/// Files that all ranks have opened by HDF5 and MPI-IO, by file_index().
struct ParallelFiles {
  const hdf5::Parallel& ranks;
  std::vector<hdf5::File*> files;
  std::vector<PosixFile>* written = nullptr;  ///< the same files, to send to the disk what was written
};
/// Where `work` runs. tasks: beside the calls of HDF5, several at once, for work in host memory, since tasks use
/// neither MPI nor a GPU.
enum class On { calling_thread, tasks };

/// Writes or reads by HDF5, which the calling thread calls, in the order of datasets. `stored` is equal on all ranks.
/// By collective transfers every rank makes as many calls for a dataset as the rank with most, the last ones without
/// elements. A rank that has failed goes on with such calls and throws at the end. Collective over the world, if
/// transfers are.
void move_payload(const std::vector<Window>& windows, const StoredTensors& stored, hdf5::Parallel::Transfer transfer,
                  const ParallelFiles& files, const SlabWork& work, On on);

}  // namespace tessera
