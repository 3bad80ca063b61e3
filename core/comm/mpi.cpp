#include "core/comm/mpi.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>

#include "core/comm/mpi_communicator.hpp"
#include "core/comm/mpi_control.hpp"
#include "core/comm/mpi_watch.hpp"
#include "core/comm/nccl/nccl_communicator.hpp"
#include "core/comm/peers.hpp"
#include "core/comm/staged.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {

struct Mpi::State {
  bool finalise = false;  ///< whether this object initialised MPI and must finalise it
  std::unique_ptr<MpiWatch> watch;
  std::unique_ptr<Peers> peers;  ///< null if the ranks cannot watch each other, and for one rank
};

Mpi::Mpi(int* argc, char*** argv) : state_(std::make_unique<State>()) {
  int running = 0;
  MPI_Initialized(&running);
  if (!running) {
    int provided = 0;
    // The main thread makes all MPI calls, except for MpiSentinel's thread, which reports while the main thread is held
    // in a call.
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    state_->finalise = true;
  }
  state_->watch = std::make_unique<MpiWatch>(MPI_COMM_WORLD);
  const std::unique_ptr<Control> control = this->control(std::chrono::seconds(300));
  state_->peers = Peers::connect(*control, control->gather(host()));
  state_->watch->with(state_->peers.get());
}

Mpi::~Mpi() {
  state_->watch.reset();
  if (state_->finalise) MPI_Finalize();
  state_->peers.reset();  // last: until then the end of a rank is noticed
}

int Mpi::rank() const { return state_->watch->rank(); }
int Mpi::size() const { return state_->watch->size(); }
int Mpi::local_rank() const { return state_->watch->local_rank(); }
std::string Mpi::host() const { return state_->watch->host(); }

std::string Mpi::version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string first(text, static_cast<std::size_t>(length));
  first.erase(std::min(first.find('\n'), first.size()));
  std::replace(first.begin(), first.end(), '\t', ' ');
  return first;
}

std::string Mpi::nccl_version() { return tessera::nccl_version(); }

std::string Mpi::launch_mistake() const {
  if (size() > 1) return "";
  // Each variable holds the number of ranks that a launcher has started: Hydra and other PMI, srun, Open MPI's mpirun.
  for (const char* variable : {"PMI_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"}) {
    const char* text = std::getenv(variable);
    if (!text) continue;
    const long tasks = std::strtol(text, nullptr, 10);
    // The first variable decides: Hydra's PMI_SIZE of one rank is right, even inside a Slurm step of several tasks.
    if (tasks <= 1) return "";
    return fmt::format(
        "started as {} separate runs of one rank each ({}={}), not as one run of {}: this program uses {}; "
        "start it with srun --mpi=pmi2 (srun --mpi=list shows what there is), or with that library's own mpiexec",
        tasks, variable, text, tasks, version());
  }
  return "";
}

Mesh Mpi::mesh(Device& device, const Ranks& ranks, std::chrono::seconds timeout, const MpiOptions& options) {
  require(ranks == this->ranks(ranks.experts.size), "Mpi::mesh", "takes the ranks of this process");
  auto over_mpi = [&] { return mpi_mesh(*state_->watch, ranks, device.communication(), timeout, options); };
  if (!device.compute().native()) return over_mpi();
  if (size() == 1 && options.transport == Transport::fastest) return self_mesh();
  std::vector<std::string> gpus = mpi_control(*state_->watch, timeout)->gather(Runtime::gpu().uuid);
  std::sort(gpus.begin(), gpus.end());
  const bool shared = std::adjacent_find(gpus.begin(), gpus.end()) != gpus.end();
  if (options.transport == Transport::fastest && !shared)
    return nccl_mesh(*state_->watch, ranks, device, timeout, options);
  Mesh mesh = over_mpi();
  mesh.wrap([&](std::unique_ptr<Communicator> one) { return staged(device, std::move(one)); });
  return mesh;
}

std::unique_ptr<Control> Mpi::control(std::chrono::seconds timeout) { return mpi_control(*state_->watch, timeout); }

void Mpi::abort(Exit code, const std::string& what) { state_->watch->abort(code, what); }

}  // namespace tessera
