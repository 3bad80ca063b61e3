#pragma once
#include <exception>
#include <new>
#include <system_error>

#include "kernels/base/error.hpp"

namespace tessera {

/// Runs `work` and turns an exception into a problem, so that ranks can agree on it before any of them leaves. Local.
template <class Work>
void attempt(Problems& problems, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    problems.add(error.code(), error.what());
  } catch (const std::system_error& error) {
    problems.add(Exit::environment, error.what());
  } catch (const std::bad_alloc&) {
    problems.add(Exit::environment, "the host's memory, or this process's share of it, is used up");
  } catch (const std::exception& error) {
    problems.add(Exit::internal, error.what());
  }
}

}  // namespace tessera
