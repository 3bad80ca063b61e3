#include "core/comm/nccl/nccl_communicator.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

std::unique_ptr<Communicator> nccl_communicator(MpiWatch&, Device&, std::chrono::seconds, const MpiOptions&) {
  throw Error(Exit::internal, "a host build has no NCCL");
}
std::string nccl_version() { return ""; }

}  // namespace tessera
