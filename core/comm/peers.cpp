#include "core/comm/peers.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "core/comm/alarm.hpp"

namespace tessera {
namespace {

/// Owner of a descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// What is said over a connection. hello: by a rank that connects; welcome: the answer; finished: the rank ends in
/// order. leaves: the rank ends all with `code`; died: the rank has ended without a word.
enum class Kind : std::int32_t { hello, welcome, finished, leaves, died };
struct Word {
  std::uint64_t token = 0;  ///< of this run: nobody else who connects is heard
  Kind kind = Kind::hello;
  std::int32_t rank = 0, code = 0, unused = 0;
};

/// A connection, and what has arrived of the next word.
struct Link {
  Descriptor socket;
  int rank = -1;          ///< of the other end; -1: it has not said hello
  bool in_order = false;  ///< whether the other end has announced its end
  std::size_t arrived = 0;
  Word word{};

  void say(const Word& words) const { ::send(socket.number(), &words, sizeof words, MSG_NOSIGNAL | MSG_DONTWAIT); }
  enum class Received { nothing, word, end };
  Received receive() {
    const ssize_t n =
        ::recv(socket.number(), reinterpret_cast<char*>(&word) + arrived, sizeof word - arrived, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Received::nothing;
    if (n <= 0) return Received::end;
    arrived = (arrived + static_cast<std::size_t>(n)) % sizeof word;
    return arrived == 0 ? Received::word : Received::nothing;
  }
};

/// Waits until `socket` is ready for `events`; false after two seconds.
bool ready(const Descriptor& socket, short events) {
  pollfd one{socket.number(), events, 0};
  constexpr int milliseconds = 2000;
  return ::poll(&one, 1, milliseconds) > 0;
}

/// The IPv4 addresses of this host, without those of the host alone.
std::vector<std::string> addresses() {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    if (!(one->ifa_flags & IFF_UP) || (one->ifa_flags & IFF_LOOPBACK)) continue;
    char text[INET_ADDRSTRLEN] = {};
    const auto* const place = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (::inet_ntop(AF_INET, &place->sin_addr, text, sizeof text)) found.emplace_back(text);
  }
  ::freeifaddrs(all);
  return found;
}

/// Where rank 0 listens, as text "token port address address ...".
struct Meeting {
  std::uint64_t token = 0;
  int port = 0;
  std::vector<std::string> addresses;

  std::string text() const { return fmt::format("{} {} {}", token, port, fmt::join(addresses, " ")); }
  static Meeting of(const std::string& text) {
    Meeting meeting;
    std::istringstream words(text);
    words >> meeting.token >> meeting.port;
    for (std::string one; words >> one;) meeting.addresses.push_back(one);
    return meeting;
  }
};

/// Room for a connection to each rank, beside the files of a run, as far as the limit may be raised.
void make_room(std::size_t ranks) {
  constexpr rlim_t files = 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= ranks + files) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, ranks + files);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// A socket that listens for all hosts of the run; none if the system gives none.
Descriptor listen_on(Meeting& meeting, bool one_host) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(one_host ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof place;
  auto* const address = reinterpret_cast<sockaddr*>(&place);
  if (!socket || ::bind(socket.number(), address, size) != 0 || ::listen(socket.number(), SOMAXCONN) != 0 ||
      ::getsockname(socket.number(), address, &size) != 0 ||
      ::getrandom(&meeting.token, sizeof meeting.token, 0) != sizeof meeting.token)
    return Descriptor();
  meeting.port = ntohs(place.sin_port);
  meeting.addresses = one_host ? std::vector<std::string>{"127.0.0.1"} : addresses();
  return socket;
}

/// A connection to rank 0 that has been answered; without a socket if none has.
Link connected(const Meeting& meeting, int rank) {
  for (const std::string& text : meeting.addresses) {
    Link link{Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), 0};
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<std::uint16_t>(meeting.port));
    if (!link.socket || ::inet_pton(AF_INET, text.c_str(), &place.sin_addr) != 1) continue;
    const int begun = ::connect(link.socket.number(), reinterpret_cast<sockaddr*>(&place), sizeof place);
    if ((begun != 0 && errno != EINPROGRESS) || !ready(link.socket, POLLOUT)) continue;
    link.say({meeting.token, Kind::hello, rank});
    const bool word = ready(link.socket, POLLIN) && link.receive() == Link::Received::word;
    if (word && link.word.token == meeting.token) return link;
  }
  return {};
}

}  // namespace

/// The thread that hears the connections of a rank: rank 0's to all others, another rank's to rank 0.
class Peers::Watch {
 public:
  Watch(int rank, const std::vector<std::string>& hosts, std::uint64_t token, Descriptor listening, Link to_root)
      : rank_(rank), hosts_(hosts), token_(token), listening_(std::move(listening)) {
    if (to_root.socket) links_.push_back(std::move(to_root));
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that wait for them
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  /// Ends the thread, once it has told all connections.
  void finish() {
    thread_.request_stop();
    wake();
    thread_.join();
    for (const Link& link : links_) link.say({token_, Kind::finished, rank_});
  }
  void leaving(Exit code) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(leaving_, true)) return;
    for (const Link& link : links_) link.say({token_, Kind::leaves, rank_, static_cast<std::int32_t>(code)});
  }

 private:
  void wake() const { ::eventfd_write(wake_.number(), 1); }

  void watch(const std::stop_token& stop) {
    std::vector<pollfd> places;
    while (!stop.stop_requested()) {
      places.assign({{wake_.number(), POLLIN, 0}, {listening_.number(), POLLIN, 0}});  // poll() skips a number of -1
      for (const Link& link : links_) places.push_back({link.socket.number(), POLLIN, 0});
      if (::poll(places.data(), places.size(), -1) < 0) continue;
      const std::lock_guard lock(mutex_);
      if (leaving_) return;  // this rank ends: whatever the others do is no news
      for (std::size_t i = links_.size(); i-- > 0;)
        if (places[i + 2].revents != 0) receive_from(i);
      if (places[1].revents != 0) accept();
    }
  }

  void accept() {
    Descriptor socket(::accept4(listening_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket)
      links_.push_back({std::move(socket)});
    else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      listening_ = Descriptor();  // the ranks that are not answered say so
  }

  void receive_from(std::size_t which) {
    Link& link = links_[which];
    const Link::Received received = link.receive();
    if (received == Link::Received::word && link.word.token == token_) return take(link);
    if (received == Link::Received::nothing) return;
    const Link ended = std::move(link);
    links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(which));
    if (ended.rank >= 0 && !ended.in_order) died(ended.rank);
  }

  void take(Link& from) {
    const Word word = from.word;
    if (word.rank < 0 || static_cast<std::size_t>(word.rank) >= hosts_.size()) return;
    switch (word.kind) {
      case Kind::hello:
        from.rank = word.rank;
        from.say({token_, Kind::welcome, rank_});
        break;
      case Kind::welcome:
        break;
      case Kind::finished:
        from.in_order = true;
        break;
      case Kind::leaves:
        tell(word, from.rank);
        end(static_cast<Exit>(word.code), std::chrono::seconds(3));
      case Kind::died:
        died(word.rank);
    }
  }

  /// On rank 0: passes a word on to the others.
  void tell(const Word& word, int but) const {
    for (const Link& link : links_)
      if (rank_ == 0 && link.rank != but) link.say(word);
  }

  [[noreturn]] void died(int rank) {
    tell({token_, Kind::died, rank}, rank);
    if (rank_ == 0 || rank == 0)  // one voice, if it lives
      fmt::print(stderr,
                 "[r{} {}] communication failed: rank {} on {} has ended without a word (killed, crashed, or out of "
                 "memory); all ranks end\n",
                 rank_, hosts_[static_cast<std::size_t>(rank_)], rank, hosts_[static_cast<std::size_t>(rank)]);
    end(Exit::communication, std::chrono::seconds(1));
  }

  /// Ends this process after `pause`, in which the launcher reads what was printed, and may end all by itself.
  [[noreturn]] static void end(Exit code, std::chrono::seconds pause) {
    // In case that a flush waits for a thread that waits for MPI.
    const Alarm alarm(pause + std::chrono::seconds(2), code, "");
    std::fflush(nullptr);
    std::this_thread::sleep_for(pause);
    std::_Exit(static_cast<int>(code));
  }

  const int rank_;
  const std::vector<std::string> hosts_;
  const std::uint64_t token_;
  Descriptor listening_, wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex_;  ///< guards links_ and leaving_ while the thread runs
  std::vector<Link> links_;
  bool leaving_ = false;
  std::jthread thread_;
};

std::unique_ptr<Peers> Peers::connect(Control& control, const std::vector<std::string>& hosts) {
  if (hosts.size() == 1) return nullptr;
  const int rank = control.rank();
  const bool root = rank == 0, one_host = std::ranges::count(hosts, hosts.front()) == std::ssize(hosts);
  Meeting meeting;
  Descriptor listening;
  std::unique_ptr<Watch> watch;
  if (root) {
    make_room(hosts.size());
    listening = listen_on(meeting, one_host);
    if (listening) watch = std::make_unique<Watch>(rank, hosts, meeting.token, std::move(listening), Link());
  }
  meeting = Meeting::of(control.broadcast(meeting.text()));
  if (!root && meeting.port != 0)
    if (Link link = connected(meeting, rank); link.socket)
      watch = std::make_unique<Watch>(rank, hosts, meeting.token, Descriptor(), std::move(link));
  const std::vector<std::string> watched = control.gather(watch ? "" : hosts[static_cast<std::size_t>(rank)]);
  const auto without = std::ranges::count_if(watched, [](const std::string& host) { return !host.empty(); });
  if (root && without > 0)
    fmt::print(stderr,
               "{} of {} ranks cannot connect to rank 0 on {} over TCP (IPv4): the end of such a rank is noticed after "
               "comm.timeout_s alone\n",
               without, hosts.size(), hosts.front());
  return watch ? std::unique_ptr<Peers>(new Peers(std::move(watch))) : nullptr;
}

Peers::Peers(std::unique_ptr<Watch> watch) : watch_(std::move(watch)) {}
Peers::~Peers() { watch_->finish(); }
void Peers::leaving(Exit code) { watch_->leaving(code); }

}  // namespace tessera
