#include "app/cli/ranks.hpp"

#include <cstdio>

#include <fmt/format.h>

namespace tessera {

int on_all_ranks(const std::function<int(Mpi&, Control&)>& verb) {
  Mpi mpi(nullptr, nullptr);
  const auto control = mpi.control(std::chrono::seconds(300));
  try {
    return verb(mpi, *control);
  } catch (const Error& error) {
    // Agreed failures reach every rank alike; an internal one may be this rank's own, which the others cannot learn of.
    if (error.code() == Exit::internal && mpi.size() > 1) mpi.abort(error.code(), error.what());
    if (mpi.rank() == 0) fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    mpi.abort(Exit::internal, error.what());
  }
}

}  // namespace tessera
