#include "app/training/loop/hooks.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include <fmt/format.h>

namespace tessera {
namespace {

void tell(const char* key, const std::string& what) {
  fmt::print(stderr, "{}: {} (nothing else is affected)\n", key, what);
}

/// Variables by which a launcher tells a process that it is a rank: a program that a command starts is none.
bool of_launcher(std::string_view variable) {
  constexpr std::string_view beginnings[] = {"PMI_",         "PMIX_",       "OMPI_",         "HYDI_", "MPI_LOCAL",
                                             "SLURM_STEP_",  "SLURM_PROCID=", "SLURM_LOCALID="};
  return std::ranges::any_of(beginnings, [&](std::string_view begin) { return variable.starts_with(begin); });
}

/// This process's variables without a launcher's, and the command's own.
std::vector<std::string> environment_of(const std::vector<std::pair<const char*, std::string>>& own) {
  std::vector<std::string> all;
  for (char** variable = environ; *variable; ++variable)
    if (!of_launcher(*variable)) all.emplace_back(*variable);
  for (const auto& [name, value] : own) {
    std::erase_if(all, [begin = std::string(name) + "="](const std::string& word) { return word.starts_with(begin); });
    all.push_back(std::string(name) + "=" + value);
  }
  return all;
}

/// How a shell is started: with no input but this process's output, signals as usual, in a group of its own.
class Spawning {
 public:
  Spawning() {
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    sigset_t none, usual;
    sigemptyset(&none);
    sigfillset(&usual);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~Spawning() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  Spawning(const Spawning&) = delete;
  Spawning& operator=(const Spawning&) = delete;

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return fmt::format("the command was ended by signal {}", WTERMSIG(status));
  return fmt::format("the command ended with {}", WEXITSTATUS(status));
}

}  // namespace

Hooks::Hooks(const RunSection& run, const std::filesystem::path& directory)
    : run_(run), directory_(std::filesystem::absolute(directory)) {}

Hooks::~Hooks() {
  if (process_ > 0) ::kill(-process_, SIGKILL);
}

void Hooks::saved(std::int64_t step, const std::filesystem::path& checkpoint, const std::string& digest) {
  last_checkpoint_ = std::filesystem::absolute(checkpoint).string();
  last_digest_ = digest;
  if (run_.on_save.empty()) return;
  if (waiting_) tell("run.on_save", "passes over a save, since the command for an earlier one still runs");
  waiting_ = Due{"run.on_save",
                 run_.on_save,
                 {{"TESSERA_RUN", directory_.string()},
                  {"TESSERA_STEP", std::to_string(step)},
                  {"TESSERA_STEPS", std::to_string(run_.steps)},
                  {"TESSERA_CHECKPOINT", last_checkpoint_},
                  {"TESSERA_DIGEST", last_digest_}}};
  poll();
}

void Hooks::poll() {
  if (running() || !waiting_) return;
  start(*waiting_);
  waiting_.reset();
}

void Hooks::settle() {
  finish();
  poll();
  finish();
}

void Hooks::ended(std::int64_t step, const std::string& why, int code) {
  settle();
  if (run_.on_end.empty()) return;
  start({"run.on_end",
         run_.on_end,
         {{"TESSERA_RUN", directory_.string()},
          {"TESSERA_STEP", std::to_string(step)},
          {"TESSERA_STEPS", std::to_string(run_.steps)},
          {"TESSERA_CHECKPOINT", last_checkpoint_},
          {"TESSERA_DIGEST", last_digest_},
          {"TESSERA_END", why},
          {"TESSERA_CODE", std::to_string(code)}}});
  finish();
}

void Hooks::start(const Due& due) {
  std::fflush(nullptr);  // what stands before it in the log comes before it
  std::vector<std::string> variables = environment_of(due.variables);
  std::vector<char*> words;
  for (std::string& variable : variables) words.push_back(variable.data());
  words.push_back(nullptr);
  std::string shell = "sh", option = "-c", command = due.command;
  char* const arguments[] = {shell.data(), option.data(), command.data(), nullptr};
  const Spawning how;
  pid_t process = 0;
  const int cause = ::posix_spawn(&process, "/bin/sh", &how.files, &how.attributes, arguments, words.data());
  if (cause != 0) return tell(due.key, fmt::format("the command cannot be started: {}", std::strerror(cause)));
  key_ = due.key;
  process_ = process;
  until_ = Clock::now() + std::chrono::seconds(run_.hook_timeout_s);
}

/// Whether a command runs. Tells how one has ended that does not any more, and ends one whose time is over.
bool Hooks::running() {
  if (process_ == 0) return false;
  int status = 0;
  const bool late = Clock::now() >= until_;
  pid_t found = ::waitpid(process_, &status, WNOHANG);
  if (found == 0 && !late) return true;
  const bool ended = found == 0;
  if (ended) {
    ::kill(-process_, SIGKILL);
    while ((found = ::waitpid(process_, &status, 0)) < 0 && errno == EINTR) continue;
  }
  process_ = 0;
  if (ended) tell(key_, fmt::format("the command was ended after {} s (run.hook_timeout_s)", run_.hook_timeout_s));
  else if (found > 0 && status != 0) tell(key_, end_text(status));
  return false;
}

void Hooks::finish() {
  while (running()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

namespace {

/// Waits for rank 0, which may run three commands at most.
void await_hooks(const RunConfig& config, Control& control) {
  control.wait_at_most(config.comm.timeout() + std::chrono::seconds(3 * config.run.hook_timeout_s));
  control.agree({});
  control.wait_at_most(config.comm.timeout());
}

bool has_hooks(const RunConfig& config) { return !config.run.on_save.empty() || !config.run.on_end.empty(); }

}  // namespace

void settle_hooks(Hooks* hooks, const RunConfig& config, Control& control) {
  if (!has_hooks(config)) return;
  if (hooks) hooks->settle();
  await_hooks(config, control);
}

void end_hooks(Hooks* hooks, const RunConfig& config, Control& control, std::int64_t step, const std::string& why,
               int code) {
  if (!has_hooks(config)) return;
  if (hooks) hooks->ended(step, why, code);
  await_hooks(config, control);
}

}  // namespace tessera
