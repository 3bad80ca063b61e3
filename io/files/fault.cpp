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
#include <vector>

#include "kernels/base/error.hpp"

namespace tessera::fault {
namespace {

enum class Kind { kill, stop, enospc, eio, eintr, cut };

constexpr std::array<std::string_view, 14> phases = {"lock",     "branch", "mkdir",  "create", "guard",
                                                     "payload",  "sync",   "vote",   "digest", "close",
                                                     "manifest", "rename", "latest", "aside"};
constexpr std::array<std::string_view, 6> kinds = {"kill", "stop", "enospc", "eio", "eintr", "short"};

struct Planned {
  Phase phase;
  Kind kind;
  int times = 1;  // until it has come to the phase so often
};

std::optional<Planned> planned;  // of this rank, until it comes
std::optional<Phase> current;
std::optional<Kind> due;  // at the next system call of the current phase
std::mutex mutex;         // of what is due: system calls are made by any thread

template <class Names>
std::size_t find(const Names& names, std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
}

std::optional<int> number(std::string_view text) {
  int value = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

bool concerns(std::string_view who, int rank) {
  if (who == "all") return true;
  const std::optional<int> named = number(who);
  if (!named) throw Error(Exit::usage, fmt::format("TESSERA_FAULT: {} is no rank, nor all", who));
  return *named == rank;
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1)
    parts.push_back(text.substr(begin, (end = text.find(':', begin)) - begin));
  return parts;
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
  const std::vector<std::string_view> parts = parts_of(text);
  const bool counted = parts.size() == 4;
  const std::size_t phase = find(phases, parts[0]);
  const std::size_t kind = parts.size() == 3 || counted ? find(kinds, parts[2]) : kinds.size();
  const std::optional<int> times = counted ? number(parts[3]) : 1;
  if (phase == phases.size() || kind == kinds.size() || !times || *times < 1)
    throw Error(Exit::usage,
                fmt::format("TESSERA_FAULT={}: must read phase:rank:kind or phase:rank:kind:n; phases: {}; kinds: {}",
                            text, fmt::join(phases, ", "), fmt::join(kinds, ", ")));
  if (concerns(parts[1], rank)) planned = Planned{static_cast<Phase>(phase), static_cast<Kind>(kind), *times};
}

void enter(Phase phase) {
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(current, phase) != phase) due.reset();
    if (!planned || planned->phase != phase || --planned->times > 0) return;
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
