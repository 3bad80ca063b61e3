#include "app/cli/waiting.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

struct Variable {
  const char *name, *value;
};

/// Bounds on spinning: GNU's libgomp counts turns, LLVM's libomp milliseconds.
constexpr Variable bounds[] = {{"GOMP_SPINCOUNT", "1000"}, {"KMP_BLOCKTIME", "0"}};
constexpr const char* of_users[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"};

std::string word(const char* name, const char* value) { return std::string(name) + "=" + value; }

std::string said_by_environment() {
  std::string words;
  for (const char* name : of_users)
    if (const char* const value = std::getenv(name)) words += (words.empty() ? "" : " ") + word(name, value);
  return words;
}

bool threads_compute() { return Runtime::back_end() != "Cuda"; }

/// Whether executing this process's file again would give the same process. Not if a loader was called by name, and not
/// under valgrind, which would lose track of it.
bool can_start_again() {
  const char* const preloaded = std::getenv("LD_PRELOAD");
  const bool watched = preloaded && std::string_view(preloaded).find("vgpreload") != std::string_view::npos;
  return !watched && ::getauxval(AT_BASE) != 0;
}

}  // namespace

std::string thread_waiting() {
  std::string words = said_by_environment();
  if (words.empty() && !threads_compute()) return "as their library does";
  if (words.empty())
    for (const Variable& bound : bounds) words += (words.empty() ? "" : " ") + word(bound.name, bound.value);
  return words;
}

void bound_spinning(char* const* argv) {
  if (!threads_compute() || !said_by_environment().empty() || !can_start_again()) return;
  std::error_code unseen;  // set without /proc
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unseen);
  if (unseen) return;
  for (const Variable& bound : bounds) ::setenv(bound.name, bound.value, 1);
  ::execv(program.c_str(), argv);
  for (const Variable& bound : bounds) ::unsetenv(bound.name);  // execv failed: go on with what the library has read
}

}  // namespace tessera
