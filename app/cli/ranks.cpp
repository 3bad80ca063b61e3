#include "app/cli/ranks.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "kernels/base/attempt.hpp"

namespace tessera {

bool first_of_launch() {
  for (const char* variable : {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"})
    if (const char* const rank = std::getenv(variable)) return std::string_view(rank) == "0";
  return true;
}

int or_end_all_ranks(Mpi& mpi, const std::function<int()>& work) {
  const auto end = [&] {
    Problems problems;
    attempt(problems, [] { throw; });  // turns the exception being handled into problems
    mpi.abort(problems.list().front().code, problems.list().front().text);
  };
  try {
    return work();
  } catch (const Error& error) {
    // Agreed errors are thrown on every rank; an internal one may be on this rank alone, unknown to the others.
    if (error.code() == Exit::internal && mpi.size() > 1) end();
    throw;
  } catch (const std::exception&) {
    end();
    throw;
  }
}

namespace {

/// Runs a verb on every rank, and prints its error.
int code_of(Mpi& mpi, const std::function<int(Mpi&, Control&)>& verb) {
  const auto control = mpi.control(Mpi::start_timeout());
  try {
    return or_end_all_ranks(mpi, [&] { return verb(mpi, *control); });
  } catch (const Error& error) {
    const bool speaks = mpi.rank() == 0 && (mpi.launch_mistake().empty() || first_of_launch());
    if (speaks) fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace

int on_all_ranks(const std::function<int(Mpi&, Control&)>& verb) {
  if (const std::string mistake = Mpi::start_mistake(); !mistake.empty()) {
    if (first_of_launch()) fmt::print(stderr, "{}\n", mistake);
    return static_cast<int>(Exit::environment);
  }
  Mpi mpi(nullptr, nullptr);
  const int code = code_of(mpi, verb);
  mpi.ends_with(code);
  return code;
}

}  // namespace tessera
