#include "app/cli/dropped_output.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "io/files/posix_file.hpp"

namespace tessera {
namespace {

void tell(int error) {
  static bool told = false;
  if (std::exchange(told, true)) return;
  // Where standard error is the same full file, nobody can be told.
  write_plainly(STDERR_FILENO,
                fmt::format("standard output: {}: lines are lost (training goes on)\n", std::strerror(error)));
}

/// Writes to a descriptor, as a stream of fopencookie() does. All bytes count as written.
template <int descriptor> ssize_t write_or_drop(void*, const char* bytes, std::size_t count) {
  const int error = write_plainly(descriptor, {bytes, count});
  if (error != 0 && error != EPIPE && descriptor == STDOUT_FILENO) tell(error);
  return static_cast<ssize_t>(count);
}

template <int descriptor> void replace(std::FILE*& stream, int buffering) {
  if (::isatty(descriptor) == 1) return;
  cookie_io_functions_t functions{};
  functions.write = write_or_drop<descriptor>;
  std::FILE* const dropping = ::fopencookie(nullptr, "w", functions);
  if (dropping == nullptr) return;
  std::setvbuf(dropping, nullptr, buffering, BUFSIZ);
  std::fflush(stream);
  stream = dropping;
}

}  // namespace

void drop_unwritable_output() {
  std::signal(SIGPIPE, SIG_IGN);
  replace<STDOUT_FILENO>(stdout, _IOFBF);
  replace<STDERR_FILENO>(stderr, _IONBF);
}

}  // namespace tessera
