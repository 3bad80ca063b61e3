#include "io/files/fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera::fault {
namespace {

enum class Kind { kill, stop, enospc, eio, eintr, cut };

constexpr std::array<std::string_view, 12> phases = {"lock", "mkdir",  "create", "guard",    "payload", "sync",
                                                     "vote", "digest", "close",  "manifest", "rename",  "latest"};
constexpr std::array<std::string_view, 6> kinds = {"kill", "stop", "enospc", "eio", "eintr", "short"};

struct Planned {
  Phase phase;
  Kind kind;
};

std::optional<Planned> planned;  // of this rank, until it comes
std::optional<Phase> current;
std::optional<Kind> due;  // at the next system call of the current phase
std::mutex mutex;         // of what is due: system calls are made by any thread

template <class Names>
std::size_t find(const Names& names, std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
}

bool concerns(std::string_view who, int rank) {
  if (who == "all") return true;
  int named = -1;
  const auto [end, failure] = std::from_chars(who.data(), who.data() + who.size(), named);
  if (failure != std::errc() || end != who.data() + who.size() || named < 0)
    throw Error(Exit::usage, fmt::format("TESSERA_FAULT: {} is no rank, nor all", who));
  return named == rank;
}

bool take(Kind kind) {
  const std::lock_guard lock(mutex);
  if (due != kind) return false;
  due.reset();
  fmt::print(stderr, "TESSERA_FAULT: {} strikes\n", kinds[static_cast<std::size_t>(kind)]);
  return true;
}

}  // namespace

std::string_view name_of(Phase phase) { return phases[static_cast<std::size_t>(phase)]; }

void arm(int rank) {
  planned.reset();
  const char* text = std::getenv("TESSERA_FAULT");
  if (!text || !*text) return;
  const std::string_view all(text);
  const std::size_t first = all.find(':'), second = all.find(':', first + 1);
  const std::size_t phase = find(phases, all.substr(0, first));
  const std::size_t kind = second < all.size() ? find(kinds, all.substr(second + 1)) : kinds.size();
  if (phase == phases.size() || kind == kinds.size())
    throw Error(Exit::usage, fmt::format("TESSERA_FAULT={}: must read phase:rank:kind; phases: {}; kinds: {}", all,
                                         fmt::join(phases, ", "), fmt::join(kinds, ", ")));
  if (concerns(all.substr(first + 1, second - first - 1), rank))
    planned = Planned{static_cast<Phase>(phase), static_cast<Kind>(kind)};
}

void enter(Phase phase) {
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(current, phase) != phase) due.reset();
    if (!planned || planned->phase != phase) return;
    due = planned->kind;
    planned.reset();
  }
  if (take(Kind::kill)) std::raise(SIGKILL);
  if (take(Kind::stop)) std::raise(SIGSTOP);
}

bool fails() {
  const int cause = take(Kind::enospc) ? ENOSPC : take(Kind::eio) ? EIO : take(Kind::eintr) ? EINTR : 0;
  errno = cause;
  return cause != 0;
}

std::int64_t portion(std::int64_t bytes) { return take(Kind::cut) ? (bytes + 1) / 2 : bytes; }

void strike(const std::filesystem::path& path) {
  if (fails() && errno != EINTR)
    throw Error(Exit::environment, fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
}

}  // namespace tessera::fault
