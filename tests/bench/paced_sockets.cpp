// A library for LD_PRELOAD that makes TCP as slow as a link between two hosts: for kernels that can limit no link, nor
// make networks of namespaces. All processes of a side share its direction of the link:
//   LD_PRELOAD=.../libpaced_sockets.so PACED_LINK=FILE PACED_SIDE=0|1 tessera train DECK
// FILE holds a Link, at first the rate alone and zeros, and is shared by all. What other calls send (write, writev)
// passes unpaced: neither NCCL nor UCX moves its data by them.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace {

struct Direction {
  std::atomic<std::int64_t> free;   ///< CLOCK_MONOTONIC, ns: when all that was sent has passed
  std::atomic<std::int64_t> bytes;  ///< sent so far
};
struct Link {
  std::atomic<double> rate;  ///< bits a second; 0: no limit
  Direction directions[2];
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  if (!value) {
    std::fprintf(stderr, "paced_sockets: %s is not set\n", name);
    std::_Exit(1);
  }
  return value;
}

Link& link_of_file() {
  static Link* const link = [] {
    const int file = open(variable("PACED_LINK"), O_RDWR | O_CLOEXEC);
    if (file < 0) fail("PACED_LINK");
    void* const at = mmap(nullptr, sizeof(Link), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) fail("PACED_LINK");
    close(file);
    return static_cast<Link*>(at);
  }();
  return *link;
}

Direction& direction() {
  static Direction& mine = link_of_file().directions[std::atoi(variable("PACED_SIDE")) != 0];
  return mine;
}

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

constexpr std::int64_t slack = 1'000'000;     // ns of traffic that may pass at once
constexpr std::size_t most_at_once = 1 << 18;  // bytes of a call

/// Nanoseconds until the link is free; 0 if these bytes have it now.
std::int64_t reserve(std::size_t bytes) {
  const double rate = link_of_file().rate;
  if (rate <= 0) return 0;
  const auto takes = static_cast<std::int64_t>(8e9 * static_cast<double>(bytes) / rate);
  std::int64_t free = direction().free;
  for (;;) {
    const std::int64_t earliest = now() - slack;
    if (free > earliest + slack) return free - earliest - slack;
    if (direction().free.compare_exchange_weak(free, std::max(free, earliest) + takes)) return 0;
  }
}

/// What was reserved for bytes that did not go.
void give_back(std::size_t bytes) {
  if (const double rate = link_of_file().rate; rate > 0)
    direction().free -= static_cast<std::int64_t>(8e9 * static_cast<double>(bytes) / rate);
}

bool waits(int socket, int flags) { return !(flags & MSG_DONTWAIT) && !(fcntl(socket, F_GETFL) & O_NONBLOCK); }

bool is_tcp(int socket) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && (domain == AF_INET || domain == AF_INET6);
}

/// Sends `bytes` by f(), once the link is free; -1 with EAGAIN where the socket does not wait.
template <class F>
ssize_t paced(int socket, int flags, std::size_t bytes, const F& f) {
  while (const std::int64_t wait = reserve(bytes)) {
    if (!waits(socket, flags)) {
      errno = EAGAIN;
      return -1;
    }
    const timespec time{wait / 1'000'000'000, wait % 1'000'000'000};
    nanosleep(&time, nullptr);
  }
  const ssize_t sent = f();
  const int error = errno;
  const std::size_t went = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  direction().bytes += static_cast<std::int64_t>(went);
  give_back(bytes - went);
  errno = error;
  return sent;
}

template <class F>
F* original(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ssize_t send(int socket, const void* data, std::size_t size, int flags) {
  static auto* const call = original<decltype(send)>("send");
  if (!is_tcp(socket)) return call(socket, data, size, flags);
  const std::size_t part = waits(socket, flags) ? size : std::min(size, most_at_once);  // who waits expects all to go
  return paced(socket, flags, part, [&] { return call(socket, data, part, flags); });
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const call = original<decltype(sendmsg)>("sendmsg");
  if (!is_tcp(socket)) return call(socket, message, flags);
  std::size_t size = 0;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) size += message->msg_iov[i].iov_len;
  return paced(socket, flags, size, [&] { return call(socket, message, flags); });
}
