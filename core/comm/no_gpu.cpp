// What a build without GPUs answers: it has no NCCL.
#include "core/comm/nccl/nccl_communicator.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

Mesh nccl_mesh(MpiWatch&, const Ranks&, Device&, std::chrono::seconds, const MpiOptions&) {
  throw Error(Exit::internal, "a host build has no NCCL");
}
bool gpus_reach_each_other(Control&, int, int) { return false; }
std::string nccl_version() { return ""; }

}  // namespace tessera
