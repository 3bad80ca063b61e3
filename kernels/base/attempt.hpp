#pragma once
#include <exception>
#include <system_error>

#include "kernels/base/error.hpp"

namespace tessera {

/// Runs `work` on this rank; what it throws becomes a problem, so that all ranks can agree on it afterwards.
template <class Work>
void attempt(Problems& problems, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    problems.add(error.code(), error.what());
  } catch (const std::system_error& error) {
    problems.add(Exit::environment, error.what());
  } catch (const std::exception& error) {
    problems.add(Exit::internal, error.what());
  }
}

}  // namespace tessera
