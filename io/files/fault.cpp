#include "io/files/fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace tessera::fault {
namespace {

enum class Kind { kill, stop, enospc, eio, eintr, cut, slow };

constexpr std::array<std::string_view, 16> phases = {"lock",      "branch",   "mkdir",  "create", "guard",
                                                     "structure", "payload",  "sync",   "vote",   "digest",
                                                     "close",     "manifest", "rename", "latest", "aside",
                                                     "retire"};
static_assert(phases.size() == static_cast<std::size_t>(Phase::retire) + 1, "every phase has a name");
constexpr std::array<std::string_view, 7> kinds = {"kill", "stop", "enospc", "eio", "eintr", "short", "slow"};

struct Planned {
  Phase phase;
  Kind kind;
  int times = 1;  // entries of the phase until the fault
};

std::optional<Planned> planned;  // this rank's fault, until its phase is entered
struct PlannedStep {
  std::int64_t step;
  StepFault fault;
};
constexpr std::array<std::string_view, 10> step_faults = {
    "nan", "inf", "redo", "activation", "gradient", "shard", "number", "bit", "bit_for_another", "bit_always"};
static_assert(step_faults.size() == static_cast<std::size_t>(StepFault::bit_always) + 1, "every fault has a name");

std::optional<PlannedStep> planned_step;  // this rank's fault in a step, until that step
std::optional<Phase> current;
std::optional<Kind> due;  // at the next system call of the current phase
std::mutex mutex;         // guards `due` and `owner`, since any thread may make system calls
std::thread::id main_thread;
std::optional<std::thread::id> owner;  // the thread whose calls fail; empty: any thread

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

/// Parses step<N>:rank:fault; empty if the text has another form. `redo` takes all ranks.
std::optional<PlannedStep> step_of(const std::vector<std::string_view>& parts) {
  constexpr std::string_view word = "step";
  if (parts.size() != 3 || !parts[0].starts_with(word)) return std::nullopt;
  const std::optional<int> step = number(parts[0].substr(word.size()));
  const std::size_t fault = find(step_faults, parts[2]);
  const bool alone = static_cast<StepFault>(fault) == StepFault::redo && parts[1] != "all";
  if (!step || *step < 1 || fault == step_faults.size() || alone) return std::nullopt;
  return PlannedStep{*step, static_cast<StepFault>(fault)};
}

/// Whether a due fault concerns the calling thread: while a thread saves during training, only that thread's calls
/// fail. Call it with the mutex locked.
bool mine() { return !owner || *owner == std::this_thread::get_id(); }

/// Delays a system call if the fault is `slow`.
void wait_if_slow() {
  const auto slow = [] {
    const std::lock_guard lock(mutex);
    return due == Kind::slow && mine();
  };
  if (slow()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

bool take(Kind kind) {
  const std::lock_guard lock(mutex);
  if (due != kind || !mine()) return false;
  due.reset();
  fmt::print(stderr, "TESSERA_FAULT: {} strikes\n", kinds[static_cast<std::size_t>(kind)]);
  return true;
}

}  // namespace

std::string_view name_of(Phase phase) { return phases[static_cast<std::size_t>(phase)]; }

void arm(int rank) {
  main_thread = std::this_thread::get_id();
  planned.reset();
  planned_step.reset();
  const char* text = std::getenv("TESSERA_FAULT");
  if (!text || !*text) return;
  const std::vector<std::string_view> parts = parts_of(text);
  if (const std::optional<PlannedStep> step = step_of(parts)) {
    if (concerns(parts[1], rank)) planned_step = step;
    return;
  }
  const bool counted = parts.size() == 4;
  const std::size_t phase = find(phases, parts[0]);
  const std::size_t kind = parts.size() == 3 || counted ? find(kinds, parts[2]) : kinds.size();
  const std::optional<int> times = counted ? number(parts[3]) : 1;
  if (phase == phases.size() || kind == kinds.size() || !times || *times < 1)
    throw Error(Exit::usage,
                fmt::format("TESSERA_FAULT={}: must read phase:rank:kind or phase:rank:kind:n; phases: {}; kinds: {}; "
                            "or step<N>:rank:fault, faults: {} (redo on all ranks)",
                            text, fmt::join(phases, ", "), fmt::join(kinds, ", "), fmt::join(step_faults, ", ")));
  if (concerns(parts[1], rank)) planned = Planned{static_cast<Phase>(phase), static_cast<Kind>(kind), *times};
}

std::optional<StepFault> in_step(std::int64_t step) {
  if (!planned_step || planned_step->step != step) return std::nullopt;
  const StepFault fault = std::exchange(planned_step, std::nullopt)->fault;
  fmt::print(stderr, "TESSERA_FAULT: {} strikes\n", step_faults[static_cast<std::size_t>(fault)]);
  return fault;
}

void enter(Phase phase) {
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(current, phase) != phase) due.reset();
    if (!planned || planned->phase != phase || --planned->times > 0) return;
    due = planned->kind;
    owner.reset();
    if (const std::thread::id self = std::this_thread::get_id(); self != main_thread) owner = self;
    planned.reset();
  }
  if (take(Kind::kill)) std::raise(SIGKILL);
  if (take(Kind::stop)) std::raise(SIGSTOP);
}

bool fails() {
  wait_if_slow();
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
