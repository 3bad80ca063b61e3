#include "app/cli/gpus.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/runtime.hpp"

namespace tessera {

int own_gpu(const Mpi& mpi) {
  const auto gpus = static_cast<int>(Runtime::gpus().size());
  return gpus > 0 ? mpi.local_rank() % gpus : -1;
}

Problems problems_with_gpus(const Mpi& mpi, Control& control, Sharing sharing) {
  Problems problems;
  if (Runtime::back_end() != "Cuda") return problems;
  const std::vector<Gpu> gpus = Runtime::gpus();
  if (gpus.empty())
    problems.add(Exit::environment, fmt::format("{}: no GPU to be seen; check nvidia-smi, CUDA_VISIBLE_DEVICES and the "
                                                "job's request, or take a host build",
                                                mpi.host()));
  // GPUs are compared by their UUID, since a job may show each rank only its own GPU, with the same index.
  const std::string mine = gpus.empty() ? "" : gpus[static_cast<std::size_t>(own_gpu(mpi))].uuid;
  std::map<std::string, int> users;
  for (const std::string& uuid : control.gather(mine)) ++users[uuid];
  users.erase("");
  const auto most = std::max_element(users.begin(), users.end(), [](auto& a, auto& b) { return a.second < b.second; });
  if (sharing == Sharing::refused && most != users.end() && most->second > 1)
    problems.add(
        Exit::deck,
        fmt::format("proof.share_gpu: false, but {} ranks would share one GPU; start no more ranks on a "
                    "host than it has GPUs, or set it to true: they then talk through host memory, slowly",
                    most->second));
  return problems;
}

}  // namespace tessera
