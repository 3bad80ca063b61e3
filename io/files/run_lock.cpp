#include "io/files/run_lock.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/files/fault.hpp"
#include "io/files/nonce.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;
constexpr const char* file_type = "tessera.lock";

std::string first_line(const fs::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// Start time of a process of this machine; empty if it has ended, even if it is still a zombie.
std::optional<std::int64_t> start_of(const std::string& pid) {
  const std::string line = first_line("/proc/" + pid + "/stat");
  const std::size_t name_end = line.rfind(')');  // the name may itself contain parentheses and spaces
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  std::int64_t started = 0;
  if (!(fields >> started) || state == "Z" || state == "X") return std::nullopt;
  return started;
}

std::string text_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? text : "";
}

std::string this_job() {
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"})
    if (const std::string id = text_of(variable); !id.empty()) {
      const std::string restarts = text_of("SLURM_RESTART_COUNT");
      return id + "." + (restarts.empty() ? "0" : restarts);
    }
  return "";
}

/// Whether job `now` is a restart of job `before`, whose earlier start must then have ended.
bool restarted(const std::string& before, const std::string& now) {
  const std::string id = now.substr(0, now.rfind('.') + 1);
  return !id.empty() && before.starts_with(id) && before != now;
}

Json to_json(const Process& process) {
  return {{"host", process.host},
          {"pid", process.pid},
          {"started", process.started},
          {"boot", process.boot},
          {"pid_space", process.pid_space}};
}

Process process_of(const Json& json) {
  return {json.at("host"), json.at("boot"), json.at("pid_space"), json.at("pid"), json.at("started")};
}

std::string digest_of(Json json) {
  json.erase("digest");
  return hex(fnv1a64(json.dump()));
}

/// Parses LOCK's text; empty if it is damaged.
std::optional<LockOwner> owner_of(const std::string& text) try {
  const Json json = Json::parse(text);
  if (json.at("file_type") != file_type || json.at("digest") != digest_of(json)) return std::nullopt;
  LockOwner owner{json.at("nonce"), json.at("job"), {}};
  for (const Json& rank : json.at("ranks")) owner.ranks.push_back(process_of(rank));
  return owner;
} catch (const Json::exception&) {
  return std::nullopt;
}

/// Description of the run that holds a directory, for messages.
std::string described(const std::string& text) {
  const std::optional<LockOwner> owner = owner_of(text);
  if (!owner || owner->ranks.empty()) return "a run that cannot be named, since LOCK is damaged";
  constexpr std::size_t most = 8;
  std::string places;
  for (std::size_t i = 0; i < std::min(most, owner->ranks.size()); ++i)
    places += fmt::format("{}{} pid {}", i ? ", " : "", owner->ranks[i].host, owner->ranks[i].pid);
  if (owner->ranks.size() > most) places += fmt::format(" and {} more ranks", owner->ranks.size() - most);
  return owner->job.empty() ? places : places + ", batch job " + owner->job;
}

/// Text and modification time of LOCK, by one open of it: opening makes a network file system ask its server.
struct Seen {
  std::string text;
  std::chrono::nanoseconds changed;
};

Seen read_lock(const fs::path& path) {
  if (std::error_code unknown; fs::is_directory(path, unknown))
    throw Error(Exit::environment, path.string() + ": is a folder, where a run keeps its lock; move it away");
  const PosixFile file(path, PosixFile::Mode::read);
  Seen seen{std::string(static_cast<std::size_t>(file.size()), '\0'), file.changed()};
  file.read(0, seen.text.data(), std::ssize(seen.text));
  return seen;
}
std::optional<Seen> try_read_lock(const fs::path& path) try {
  return read_lock(path);
} catch (const Error&) {
  return std::nullopt;
}

/// The present time by the clock of the file system at `beside`.
std::chrono::nanoseconds time_at(const fs::path& beside) {
  const auto now = PosixFile(beside, PosixFile::Mode::replace).changed();
  fs::remove(beside);
  return now;
}

/// Waits until the owner touches LOCK (running) or has been silent for heartbeat.silence (ended).
Life listen(const fs::path& path, const Seen& first, const Heartbeat& heartbeat, const std::string& nonce) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::nanoseconds silent = time_at(path.string() + "." + nonce) - first.changed;
  const auto deadline = Clock::now() + heartbeat.silence - std::max(silent, std::chrono::nanoseconds(0));
  while (Clock::now() < deadline) {
    std::this_thread::sleep_for(heartbeat.every / 5);
    const std::optional<Seen> again = try_read_lock(path);
    if (!again) return Life::ended;
    if (again->changed != first.changed) return Life::running;
  }
  return Life::ended;
}

/// Removes the LOCK of an ended owner. If another run has taken over meanwhile, its LOCK is put back.
void remove_stale(const fs::path& path, const Seen& stale, const std::string& nonce) {
  const fs::path aside = path.string() + "." + nonce;
  std::error_code gone;
  fs::rename(path, aside, gone);
  if (gone) return;
  const std::optional<Seen> moved = try_read_lock(aside);
  if (moved && moved->text != stale.text) fs::create_hard_link(aside, path, gone);
  fs::remove(aside, gone);
}

}  // namespace

Process this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::error_code unknown;
  const std::int64_t pid = ::getpid();
  return {host.data(), first_line("/proc/sys/kernel/random/boot_id"),
          fs::read_symlink("/proc/self/ns/pid", unknown).string(), pid, start_of(std::to_string(pid)).value_or(0)};
}

std::string to_json(const LockOwner& owner) {
  Json json = {{"file_type", file_type}, {"nonce", owner.nonce}, {"job", owner.job}, {"ranks", Json::array()}};
  for (const Process& rank : owner.ranks) json["ranks"].push_back(to_json(rank));
  json["digest"] = digest_of(json);
  return json.dump(1) + '\n';
}

Life life_of(const std::string& text, const Process& me, const std::string& job) {
  const std::optional<LockOwner> owner = owner_of(text);
  if (!owner) return Life::unclear;
  if (restarted(owner->job, job)) return Life::ended;
  bool all_seen = !me.boot.empty();
  for (const Process& rank : owner->ranks) {
    // A host's name need not be unique, but a boot's id is; a pid is valid within its pid namespace only.
    const bool visible = rank.host == me.host && rank.boot == me.boot && rank.pid_space == me.pid_space;
    if (visible && start_of(std::to_string(rank.pid)) == rank.started) return Life::running;
    all_seen = all_seen && visible;
  }
  return all_seen ? Life::ended : Life::unclear;
}

RunLock::RunLock(const fs::path& run, Control& control, const Heartbeat& heartbeat)
    : path_(run / "LOCK"), control_(&control), heartbeat_(heartbeat) {
  LockOwner owner{nonce(), this_job(), {}};
  for (const std::string& rank : control.gather(to_json(this_process()).dump()))
    owner.ranks.push_back(process_of(Json::parse(rank)));
  Problems problems;
  fault::enter(fault::Phase::lock);
  if (control.rank() == 0) attempt(problems, [&] { take(owner); });
  control.agree(problems);
  if (file_) keep_alive();
}

RunLock::RunLock(const fs::path& run, const Heartbeat& heartbeat)
    : path_(run / "LOCK"), control_(nullptr), heartbeat_(heartbeat) {
  take({nonce(), this_job(), {this_process()}});
  keep_alive();
}

void RunLock::keep_alive() {
  heart_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any end;
    while (!stop.stop_requested()) {
      file_->touch();
      end.wait_for(lock, stop, heartbeat_.every, [] { return false; });
    }
  });
}

RunLock::~RunLock() {
  if (!file_) return;
  heart_ = {};
  std::error_code ignored;
  if (held()) fs::remove(path_, ignored);
}

bool RunLock::held() const {
  if (!file_) return true;
  const std::optional<Seen> there = try_read_lock(path_);
  return there && there->text == text_;
}

void RunLock::require_held() const {
  Problems problems;
  if (!control_ || control_->rank() == 0) {
    const std::optional<Seen> there = try_read_lock(path_);
    if (!there || there->text != text_)
      problems.add(Exit::environment,
                   fmt::format("{}: this run holds the directory no more: {}; it ends without saving", path_.string(),
                               there ? described(there->text) + " took over" : "somebody removed the file"));
  }
  control_ ? control_->agree(problems) : problems.raise();
}

void RunLock::take(const LockOwner& owner) {
  const std::string text = to_json(owner);
  const fs::path run = path_.parent_path();
  for (int unseen = 0;;) {
    if (std::optional<PosixFile> made = PosixFile::exclusive(path_)) {
      try {
        made->write(0, text.data(), std::ssize(text));
        made->sync();
      } catch (const Error&) {
        std::error_code ignored;
        fs::remove(path_, ignored);
        throw;
      }
      text_ = text;
      file_.emplace(std::move(*made));
      return;
    }
    const std::optional<Seen> seen = try_read_lock(path_);
    if (!seen) {  // LOCK has just been removed; if that repeats, read_lock throws what keeps it from being read
      if (++unseen > 100) read_lock(path_);
      continue;
    }
    Life life = life_of(seen->text, owner.ranks.front(), owner.job);
    if (life == Life::unclear) {
      fmt::print(stderr, "{}: waiting up to {} s for a sign of life of {}\n", path_.string(),
                 heartbeat_.silence.count() / 1000, described(seen->text));
      life = listen(path_, *seen, heartbeat_, owner.nonce);
    }
    if (life == Life::running)
      throw Error(Exit::environment,
                  fmt::format("{}: another run trains there: {}; wait for it, end it with kill -TERM to one of its "
                              "pids, or name another checkpoint.dir",
                              run.string(), described(seen->text)));
    fmt::print(stderr, "{}: taken over from a run that has ended without removing it: {}\n", path_.string(),
               described(seen->text));
    remove_stale(path_, *seen, owner.nonce);
  }
}

}  // namespace tessera
