#include "app/cli/dropped_output.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace tessera {
namespace {

/// Writes all bytes, or as many as can be. Returns 0 or an errno. Not write_all(), in which injected faults strike and
/// print: this may be such a print.
int write_plainly(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor, bytes.data(), bytes.size());
    if (n == 0) return ENOSPC;
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    else if (errno != EINTR) return errno;
  }
  return 0;
}

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
