#include "app/training/start/shared_folder.hpp"

#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "app/cli/hosts.hpp"
#include "io/files/nonce.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

/// Whether a file comes to hold this text, within ten seconds.
bool appears(const std::filesystem::path& path, const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (true) {
    std::ifstream file(path);
    if (std::string(std::istreambuf_iterator<char>(file), {}) == text) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Answers rank 0's file `probe` by another; returns what is wrong.
std::string answer(const std::filesystem::path& probe, const std::filesystem::path& mine, const std::string& text,
                   WrittenBy by) {
  if (!appears(probe, text)) return "does not see";
  if (const int failure = write_synced(mine, text); failure != 0)
    return fmt::format("cannot write ({}) in", std::strerror(failure));
  if (by == WrittenBy::system_calls) return "";
  Problems unreadable;
  int unlocked = 0;
  attempt(unreadable, [&] { unlocked = PosixFile(mine, PosixFile::Mode::write).refuses_locks_of_parts(); });
  if (!unreadable.empty()) return "cannot open its own files of";
  if (unlocked == 0) return "";
  return fmt::format("cannot lock files ({}; checkpoint.io: mpio needs locks) of", std::strerror(unlocked));
}

/// The ranks on the host of `first`.
std::vector<int> ranks_with(const std::vector<std::string>& hosts, int first) {
  std::vector<int> ranks;
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r)
    if (hosts[static_cast<std::size_t>(r)] == hosts[static_cast<std::size_t>(first)]) ranks.push_back(r);
  return ranks;
}

}  // namespace

Problems problems_with_sharing(const std::filesystem::path& directory, WrittenBy by, const Mpi& mpi, Control& control) {
  Problems problems;
  if (!mpi.several_hosts()) return problems;
  const bool root = mpi.rank() == 0, answers = mpi.local_rank() == 0 && !root;
  const std::string name = control.broadcast(root ? ".trash.probe." + nonce() : "");  // a kind of leftover
  const auto of_rank = [&](int rank) { return directory / fmt::format("{}.{}", name, rank); };
  std::string fault;
  if (root && write_synced(of_rank(0), name) != 0) fault = "cannot write in";
  control.max(0);
  if (answers) fault = answer(of_rank(0), of_rank(mpi.rank()), name, by);
  const std::vector<std::string> faults = control.gather(fault), answering = control.gather(answers ? "yes" : "");
  std::string unseen;  // by rank 0: first ranks of hosts
  for (int r = 1; root && r < mpi.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (answering[i] == "yes" && faults[i].empty() && !appears(of_rank(r), name)) unseen += fmt::format("{} ", r);
  }
  unseen = control.broadcast(unseen);
  std::error_code absent;
  if (root || answers) std::filesystem::remove(of_rank(mpi.rank()), absent);

  const std::string here = fmt::format("{} of {}", directory.string(), mpi.hosts().front());
  const auto add = [&](const std::string& text) {
    problems.add(Exit::environment,
                 fmt::format("checkpoint.dir: {}; name a directory of a file system that all hosts share", text));
  };
  for (int r = 0; r < mpi.size(); ++r)
    if (const std::string& wrong = faults[static_cast<std::size_t>(r)]; !wrong.empty())
      add(fmt::format("{} {} {}", places_text(mpi.hosts(), ranks_with(mpi.hosts(), r)), wrong, here));
  for (std::size_t at = 0; at < unseen.size(); at = unseen.find(' ', at) + 1)
    add(fmt::format("{} writes what {} does not see in {}",
                    places_text(mpi.hosts(), ranks_with(mpi.hosts(), std::stoi(unseen.substr(at)))),
                    mpi.hosts().front(), here));
  return problems;
}

}  // namespace tessera
