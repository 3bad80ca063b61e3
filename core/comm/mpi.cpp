#include "core/comm/mpi.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/comm/alarm.hpp"
#include "core/comm/mpi_communicator.hpp"
#include "core/comm/mpi_control.hpp"
#include "core/comm/mpi_watch.hpp"
#include "core/comm/nccl/nccl_communicator.hpp"
#include "core/comm/peers.hpp"
#include "core/comm/staged.hpp"
#include "core/comm/this_host.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {

struct Mpi::State {
  bool finalise = false;  ///< whether this object initialised MPI and must finalise it
  int code = 0;           ///< of the run
  std::unique_ptr<MpiWatch> watch;
  std::unique_ptr<Peers> peers;  ///< null if the ranks cannot watch each other, and for one rank
};

namespace {

/// Whether MPI_Finalize may never return: before MPICH 5.0 some ranks of several hosts miss the last barrier of Hydra's
/// process manager. Hydra alone sets the variable.
bool finalize_may_hang(bool several_hosts) {
  int major = 0;
  const bool mpich = std::sscanf(Mpi::version().c_str(), "MPICH Version: %d.", &major) == 1;
  return several_hosts && mpich && major < 5 && std::getenv("MPI_LOCALNRANKS");
}

/// Whether this Open MPI starts by Slurm's older interfaces too (built --with-pmi), as names of its components say.
bool speaks_older_pmi() {
  int provided = 0, index = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return true;  // MPI_Init decides
  const auto has = [&](const char* component) { return MPI_T_category_get_index(component, &index) == MPI_SUCCESS; };
  const bool found = has("opal_pmix_s1") || has("opal_pmix_s2") || has("opal_pmix_cray");
  MPI_T_finalize();
  return found;
}

/// How so many ranks are started as one run of this library.
std::string right_launch(const char* ranks) {
  const std::string version = Mpi::version(), library = version.substr(0, version.find(',')), own = Mpi::launcher();
  return fmt::format(
      "this program uses {0}; start it with {1} -n {2}, or under Slurm with srun --mpi={3} (srun --mpi=list shows what "
      "there is; in a job script, export SLURM_MPI_TYPE={3})",
      library, own.empty() ? "that library's own mpiexec" : own, ranks,
      library.starts_with("Open MPI") ? "pmix" : "pmi2");
}

}  // namespace

Mpi::Mpi(int* argc, char*** argv) : state_(std::make_unique<State>()) {
  const std::chrono::seconds limit = start_timeout();
  const Alarm alarm(limit, Exit::communication,
                    fmt::format("[{} {}] has waited {} s for MPI to start: a host or the network is lost",
                                this_host(), ::getpid(), limit.count()));
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
  const std::unique_ptr<Control> control = this->control(limit);
  state_->peers = Peers::connect(*control, control->gather(host()));
  state_->watch->with(state_->peers.get());
}

Mpi::~Mpi() {
  State& state = *state_;
  std::fflush(nullptr);
  if (state.finalise) state.watch->meet();
  const int rank = this->rank();
  const bool several = several_hosts(), may_hang = finalize_may_hang(several);
  state.watch.reset();
  if (!state.finalise) return;
  // On one host nothing is known to hang, ranks may share few cores, and the end of a rank is noticed until the last.
  // On several hosts the alarm may end ranks, whose work is done, at different moments: that is no news to the others.
  const Alarm alarm(std::chrono::seconds(several ? 8 : 120), static_cast<Exit>(state.code), "");
  if (several) state.peers.reset();
  if (!may_hang) {
    MPI_Finalize();
    return;
  }
  // Hydra reads what ranks have printed, and hears that they end in order, before rank 0 ends them.
  std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 300 : 5000));
  if (rank == 0) MPI_Abort(MPI_COMM_WORLD, state.code);
  std::_Exit(state.code);
}

int Mpi::rank() const { return state_->watch->rank(); }
int Mpi::size() const { return state_->watch->size(); }
int Mpi::local_rank() const { return state_->watch->local_rank(); }
std::string Mpi::host() const { return state_->watch->host(); }
const std::vector<std::string>& Mpi::hosts() const { return state_->watch->hosts(); }
bool Mpi::several_hosts() const { return state_->watch->several_hosts(); }
void Mpi::ends_with(int code) { state_->code = code; }

std::chrono::seconds Mpi::start_timeout() {
  const char* const text = std::getenv("TESSERA_TIMEOUT");
  if (!text) return std::chrono::seconds(300);
  constexpr int longest = 1'000'000;
  int seconds = 0;
  const auto [stop, error] = std::from_chars(text, text + std::strlen(text), seconds);
  if (error != std::errc() || *stop != '\0' || seconds < 1 || seconds > longest)
    throw Error(Exit::usage, fmt::format("TESSERA_TIMEOUT={}: must be seconds, from 1 to {}", text, longest));
  return std::chrono::seconds(seconds);
}

std::string Mpi::version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string first(text, static_cast<std::size_t>(length));
  first.erase(std::min(first.find('\n'), first.size()));
  std::replace(first.begin(), first.end(), '\t', ' ');
  return first;
}

std::string Mpi::launcher() {
  std::error_code unknown;
  return std::filesystem::exists(TESSERA_LAUNCHER, unknown) ? TESSERA_LAUNCHER : "";
}

bool Mpi::gpus_reach_each_other(Control& control, int gpu, int group) const {
  bool possible = gpu >= 0;
  for (std::size_t r = 0; r < hosts().size(); ++r)
    possible = possible && hosts()[r] == hosts()[r / static_cast<std::size_t>(group) * static_cast<std::size_t>(group)];
  if (control.max(possible ? 0 : 1) != 0) return false;
  return tessera::gpus_reach_each_other(control, gpu, group);
}

std::string Mpi::nccl_version() { return tessera::nccl_version(); }

std::string Mpi::start_mistake() {
  int major = 0;
  if (std::sscanf(version().c_str(), "Open MPI v%d.", &major) != 1 || major >= 5) return "";
  const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (!tasks || std::getenv("PMIX_NAMESPACE") || speaks_older_pmi()) return "";  // mpirun sets PMIX_NAMESPACE too
  return fmt::format("started by srun without PMIx (SLURM_STEP_NUM_TASKS={}): {}", tasks, right_launch(tasks));
}

std::string Mpi::launch_mistake() const {
  if (size() > 1) return "";
  // Each variable holds the number of ranks that a launcher has started: Hydra and other PMI, srun, Open MPI's mpirun.
  for (const char* variable : {"PMI_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"}) {
    const char* text = std::getenv(variable);
    if (!text) continue;
    const long tasks = std::strtol(text, nullptr, 10);
    // The first variable decides: Hydra's PMI_SIZE of one rank is right, even inside a Slurm step of several tasks.
    if (tasks <= 1) return "";
    return fmt::format("started as {0} separate runs of one rank each ({1}={0}), not as one run of {0}: {2}", text,
                       variable, right_launch(text));
  }
  return "";
}

Mesh Mpi::mesh(Device& device, const Ranks& ranks, std::chrono::seconds timeout, const MpiOptions& options) {
  require(ranks == this->ranks(ranks.experts.size, ranks.sharding.size), "Mpi::mesh",
          "takes the ranks of this process");
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
