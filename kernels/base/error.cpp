#include "kernels/base/error.hpp"

namespace tessera {

void Problems::raise() const {
  if (list_.empty()) return;
  std::string all;
  for (const Problem& problem : list_) all += (all.empty() ? "" : "\n") + problem.text;
  throw Error(list_.front().code, all);
}

void refuse(const char* kernel, const char* rule) {
  throw Error(Exit::internal, std::string(kernel) + ": " + rule);
}

}  // namespace tessera
