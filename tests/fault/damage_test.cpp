/// Flips single bits of checkpoints: every flip is detected and named, or lies where nothing is read. A child process
/// reads each damaged file, so that a crash or an endless loop becomes an outcome of the test.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <system_error>

#include "io/checkpoint/reader.hpp"
#include "io/files/run_lock.hpp"
#include "io/files/text_file.hpp"
#include "tests/support/saved_state.hpp"
#include "tests/support/self_control.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// A run directory with one checkpoint of a few tensors, dense enough in metadata.
class Saved {
 public:
  Saved() {
    state_.add("model", "token_embedding.weight", {40, 16}, Role::embedding);
    for (int layer = 0; layer < 3; ++layer) {
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      state_.add("model", prefix + "norm.weight", {16}, Role::norm);
      state_.add("model", prefix + "moe.experts.up.weight", {4, 24, 16}, Role::expert);
      state_.add("adamw/m", prefix + "moe.experts.up.weight", {4, 24, 16}, Role::expert);
      state_.add("adamw/v", prefix + "moe.experts.up.weight", {4, 24, 16}, Role::expert);
    }
    state_.save(ExpertWeights::discrete);
    const Checkpoint checkpoint(folder());
    for (const StoredTensor& tensor : checkpoint.tensors())
      for (const StoredTensor::Dataset& dataset : tensor.datasets)
        payload_[tensor.slot == "model" ? model_file : optimizer_file][dataset.offset] = {
            dataset.offset + dataset.count * size_of(tensor.type), tensor.path()};
    truth_ = contents(checkpoint);
  }

  const fs::path& run() const { return state_.run(); }
  fs::path folder() const { return state_.folder(); }
  /// The tensor whose payload a byte of a file belongs to; empty: metadata.
  std::string owner(const std::string& file, std::int64_t at) const {
    const auto found = payload_.find(file);
    if (found == payload_.end()) return "";
    const auto next = found->second.upper_bound(at);
    if (next == found->second.begin()) return "";
    const auto& [end, tensor] = std::prev(next)->second;
    return at < end ? tensor : "";
  }
  /// Names, shapes, types and bytes of all tensors, and the counters: all that a resumed run would read.
  static std::string contents(const Checkpoint& checkpoint) {
    std::string all = to_json(checkpoint.manifest());
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      all += tensor.path() + tensor.shape.text() + name_of(tensor.type) + tensor.axes;
      std::string bytes(static_cast<std::size_t>(tensor.shape.elements() * size_of(tensor.type)), '\0');
      checkpoint.read(tensor, 0, tensor.shape.elements(), bytes.data());
      all += bytes;
    }
    return all;
  }
  const std::string& truth() const { return truth_; }

 private:
  test::SavedState state_;
  std::map<std::string, std::map<std::int64_t, std::pair<std::int64_t, std::string>>> payload_;  // start -> end, tensor
  std::string truth_;
};

/// A file with one bit flipped for the lifetime of this object.
class Flip {
 public:
  Flip(fs::path path, std::int64_t bit) : file_(path, PosixFile::Mode::write), bit_(bit) {
    PosixFile(path, PosixFile::Mode::read).read(bit / 8, &sound_, 1);
    const char flipped = static_cast<char>(sound_ ^ (1 << bit % 8));
    file_.write(bit / 8, &flipped, 1);
  }
  ~Flip() { file_.write(bit_ / 8, &sound_, 1); }
  Flip(const Flip&) = delete;
  Flip& operator=(const Flip&) = delete;

 private:
  PosixFile file_;
  std::int64_t bit_;
  char sound_ = 0;
};

enum class Outcome { named = 1, harmless, unnamed, silent, crashed, endless };  // 0: the exit code of others

/// Outcome of reading a checkpoint; a complaint must contain `name`.
Outcome read(const Saved& saved, const std::string& name) {
  std::vector<std::string> complaints;
  try {
    const Checkpoint checkpoint(saved.folder());
    complaints = checkpoint.verify();
    if (complaints.empty()) return Saved::contents(checkpoint) == saved.truth() ? Outcome::harmless : Outcome::silent;
  } catch (const Error& error) {
    complaints.emplace_back(error.what());
  }
  const bool named =
      std::ranges::any_of(complaints, [&](const std::string& text) { return text.find(name) != std::string::npos; });
  return named ? Outcome::named : Outcome::unnamed;
}

/// The outcome in a child process, limited to ten seconds of CPU time (not wall time, for busy machines).
Outcome apart(const std::function<Outcome()>& work) {
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    const ::rlimit limit{10, 10};
    if (::setrlimit(RLIMIT_CPU, &limit) != 0) std::abort();
    _exit(static_cast<int>(work()));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) return WEXITSTATUS(status) ? static_cast<Outcome>(WEXITSTATUS(status)) : Outcome::crashed;
  return WTERMSIG(status) == SIGKILL ? Outcome::endless : Outcome::crashed;
}

/// `n` random bits of a file whose bytes satisfy `wanted`, the same ones in every run.
std::vector<std::int64_t> some_bits(const fs::path& path, int n, const std::function<bool(std::int64_t)>& wanted) {
  const auto bits = static_cast<std::uint64_t>(fs::file_size(path)) * 8;
  std::vector<std::int64_t> chosen;
  for (std::uint64_t i = 0; std::ssize(chosen) < n; ++i)
    if (const auto bit = static_cast<std::int64_t>(random_bits({4, 2}, i) % bits); wanted(bit / 8))
      chosen.push_back(bit);
  return chosen;
}

TEST(Damage, InPayloadIsFoundAndTheTensorNamed) {
  const Saved saved;
  for (const char* name : {model_file, optimizer_file}) {
    const fs::path path = saved.folder() / name;
    for (std::int64_t bit : some_bits(path, 200, [&](std::int64_t at) { return !saved.owner(name, at).empty(); })) {
      const Flip flip(path, bit);
      EXPECT_EQ(apart([&] { return read(saved, saved.owner(name, bit / 8)); }), Outcome::named) << name << " " << bit;
    }
  }
  EXPECT_EQ(read(saved, ""), Outcome::harmless);
}

TEST(Damage, InMetadataIsFoundOrHarmless) {
  const Saved saved;
  std::map<Outcome, int> count;
  for (const char* name : {model_file, optimizer_file}) {
    const fs::path path = saved.folder() / name;
    for (std::int64_t bit : some_bits(path, 200, [&](std::int64_t at) { return saved.owner(name, at).empty(); })) {
      const Flip flip(path, bit);
      const Outcome outcome = apart([&] { return read(saved, step_folder(7)); });
      ++count[outcome];
      EXPECT_TRUE(outcome == Outcome::named || outcome == Outcome::harmless)
          << name << " bit " << bit << ": " << static_cast<int>(outcome);
    }
  }
  EXPECT_EQ(count[Outcome::named] + count[Outcome::harmless], 400);
  EXPECT_GT(count[Outcome::named], 100);
}

TEST(Damage, InTheManifestIsFoundOrHarmless) {
  const Saved saved;
  std::map<Outcome, int> count;
  for (const char* name : {manifest_file, deck_file})
    for (std::int64_t bit : some_bits(saved.folder() / name, 100, [](std::int64_t) { return true; })) {
      const Flip flip(saved.folder() / name, bit);
      const Outcome outcome = apart([&] { return read(saved, name); });
      ++count[outcome];
      EXPECT_TRUE(outcome == Outcome::named || outcome == Outcome::harmless)
          << name << " bit " << bit << ": " << static_cast<int>(outcome);
    }
  EXPECT_GT(count[Outcome::named], 150);  // not all: JSON ignores white space between members
}

TEST(Damage, InLatestChangesNothing) {
  const Saved saved;
  const fs::path path = saved.run() / "latest";
  for (std::int64_t bit : some_bits(path, 100, [](std::int64_t) { return true; })) {
    const Flip flip(path, bit);
    EXPECT_EQ(find_checkpoint(saved.run()), saved.folder()) << bit;
  }
}

/// A process that has ended, with a pid and start time that were real.
Process ended_process() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::int64_t started = this_process().started;
    _exit(::write(ends[1], &started, sizeof started) == sizeof started ? 0 : 1);
  }
  Process process = this_process();
  process.pid = child;
  EXPECT_EQ(::read(ends[0], &process.started, sizeof process.started), ssize_t{sizeof process.started});
  ::waitpid(child, nullptr, 0);
  for (int end : ends) ::close(end);
  return process;
}

TEST(Damage, InALockNeverEndsALivingRunNorRevivesADeadOne) {
  const test::TemporaryFolder folder;
  const Process me = this_process();
  const std::pair<Process, Life> owners[] = {{me, Life::running}, {ended_process(), Life::ended}};
  for (const auto& [owner, life] : owners) {
    const std::string sound = to_json(LockOwner{"12345678", "", {owner, owner}});
    EXPECT_EQ(life_of(sound, me, ""), life);
    const fs::path path = folder.write("LOCK", sound);
    for (std::int64_t bit : some_bits(path, 100, [](std::int64_t) { return true; })) {
      const Flip flip(path, bit);
      const Life seen = life_of(read_text_file(path), me, "");
      EXPECT_TRUE(seen == life || seen == Life::unclear) << bit;
    }
  }
}

TEST(Damage, OfAnyLengthLeavesALockUnclear) {
  const std::string sound = to_json(LockOwner{"12345678", "4711.0", {this_process()}});
  for (std::size_t length = 0; length + 1 < sound.size(); ++length)
    EXPECT_EQ(life_of(sound.substr(0, length), this_process(), ""), Life::unclear) << length;
}

TEST(Locks, AreJudgedByBootHostAndJob) {
  const Process me = this_process();
  Process other_boot = me, other_host = me, other_space = me, reused = me;
  other_boot.boot = "00000000-0000-0000-0000-000000000000";
  other_host.host += "-not";
  other_space.pid_space += "-not";
  reused.started += 1;
  const auto life = [&](std::vector<Process> ranks, const std::string& before = "", const std::string& now = "") {
    return life_of(to_json(LockOwner{"n", before, std::move(ranks)}), me, now);
  };
  EXPECT_EQ(life({me}), Life::running);
  EXPECT_EQ(life({reused}), Life::ended);
  EXPECT_EQ(life({reused, me}), Life::running);
  for (const Process& unseen : {other_boot, other_host, other_space}) {
    EXPECT_EQ(life({unseen}), Life::unclear);
    EXPECT_EQ(life({reused, unseen}), Life::unclear);
    EXPECT_EQ(life({unseen, me}), Life::running);
  }
  EXPECT_EQ(life({other_host}, "4711.0", "4711.1"), Life::ended);
  EXPECT_EQ(life({other_host}, "4711.0", "4711.0"), Life::unclear);
  EXPECT_EQ(life({other_host}, "4711.0", "471.1"), Life::unclear);
  EXPECT_EQ(life({other_host}, "", "4711.1"), Life::unclear);
}

TEST(Locks, AreTakenReleasedAndTakenOver) {
  const test::TemporaryFolder folder;
  test::SelfControl control;
  const fs::path path = folder.path() / "LOCK";
  const Heartbeat quick{std::chrono::milliseconds(20), std::chrono::milliseconds(400)};
  {
    const RunLock first(folder.path(), control, quick);
    first.require_held();
    EXPECT_THROW(RunLock(folder.path(), control, quick), Error);
    first.require_held();
  }
  EXPECT_FALSE(fs::exists(path));
  folder.write("LOCK", "what no run wrote");
  {
    const RunLock second(folder.path(), control, quick);
    folder.write("LOCK", to_json(LockOwner{"another", "", {this_process()}}));
    EXPECT_THROW(second.require_held(), Error);
  }
  EXPECT_TRUE(fs::exists(path));  // the second run must not remove it
  fs::remove(path);
  {
    const RunLock third(folder.path(), control, quick);
    fs::remove(path);
    EXPECT_THROW(third.require_held(), Error);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Locks, OfAnOwnerThatCannotBeSeenAreHeldWhileTouched) {
  const test::TemporaryFolder folder;
  test::SelfControl control;
  // One touch of LOCK suffices, so a long silence limit does not slow the test down.
  const Heartbeat patient{std::chrono::milliseconds(20), std::chrono::minutes(1)};
  const Heartbeat quick{std::chrono::milliseconds(20), std::chrono::milliseconds(400)};
  Process elsewhere = this_process();
  elsewhere.host += "-not";
  const fs::path path = folder.write("LOCK", to_json(LockOwner{"another", "", {elsewhere}}));
  PosixFile file(path, PosixFile::Mode::write);
  {
    const std::jthread heart([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(20))) file.touch();
    });
    EXPECT_THROW(RunLock(folder.path(), control, patient), Error);
  }
  const RunLock taken(folder.path(), control, quick);
  const PosixFile now(folder.write("now", ""), PosixFile::Mode::read);
  EXPECT_GE(now.changed() - file.changed(), std::chrono::milliseconds(380));  // the clock of files ticks
}

}  // namespace
}  // namespace tessera
