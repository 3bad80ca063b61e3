#include "app/training/start/resume.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <sstream>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// The step folders of a run that it can resume from, newest first. Adds to `reasons` why others cannot. Throws
/// Error{environment} if one cannot be read now, since a run that goes on without it would replace it.
std::vector<fs::path> sound_steps(const fs::path& run, std::string& reasons) {
  std::vector<fs::path> sound;
  for (const StepFolder& folder : step_folders(run)) {
    const std::string reason = reason_not_resumable(folder.path);
    if (reason.empty())
      sound.insert(sound.begin(), folder.path);
    else
      reasons += "\n  " + reason;
  }
  return sound;
}

std::vector<fs::path> candidates_of(const Resume& resume, const fs::path& run) {
  const bool holds = !step_folders(run).empty();
  if (std::holds_alternative<FromNothing>(resume)) {
    if (holds)
      throw Error(
          Exit::file,
          run.string() +
              ": holds checkpoints that --resume none would train over; remove them, or name another checkpoint.dir");
    return {};
  }
  if (const auto* named = std::get_if<FromCheckpoint>(&resume)) {
    const fs::path chosen = find_checkpoint(named->path);
    if (const std::string reason = reason_not_resumable(chosen); !reason.empty()) throw Error(Exit::file, reason);
    return {chosen};
  }
  std::string reasons;
  std::vector<fs::path> sound = sound_steps(run, reasons);
  if (holds && sound.empty())
    throw Error(Exit::file, run.string() + ": holds no valid checkpoint; move them away to start anew:" + reasons);
  if (!reasons.empty()) fmt::print(stderr, "checkpoints passed over:{}\n", reasons);
  if (holds && latest_step(run) != sound.front().filename().string())
    fmt::print(stderr, "{}: does not name the newest valid checkpoint {}, which is taken\n", (run / "latest").string(),
               sound.front().string());
  return sound;
}

}  // namespace

std::vector<fs::path> beginnings(const Resume& resume, const fs::path& run, Control& control) {
  std::string found;
  Problems problems;
  if (control.rank() == 0)
    attempt(problems, [&] {
      for (const fs::path& path : candidates_of(resume, run))
        found += fs::absolute(path).lexically_normal().string() + '\0';  // which no path has
    });
  control.agree(problems);
  std::istringstream lines(control.broadcast(found));
  std::vector<fs::path> paths;
  for (std::string line; std::getline(lines, line, '\0');) paths.emplace_back(line);
  return paths;
}

namespace {

/// Parent::kept, decided by rank 0. Collective over the world.
std::int64_t kept_step(const Checkpoint& checkpoint, const fs::path& run, Control& control) {
  const std::int64_t step = checkpoint.manifest().counters.step;
  std::error_code absent;
  const bool own = control.rank() == 0 && fs::equivalent(checkpoint.folder(), run / step_folder(step), absent);
  return control.max(own) != 0 ? step : -1;
}

/// A checkpoint's companions, on rank 0, which alone writes files like them. Collective over the world.
Companions companions_of(const Checkpoint& checkpoint, Control& control) {
  Companions companions;
  Problems problems;
  if (control.rank() == 0) attempt(problems, [&] { companions = checkpoint.companions(); });
  control.agree(problems);
  return companions;
}

/// A text that a checkpoint records; only rank 0 opens the file. Collective over the world.
std::string recorded(std::string (Checkpoint::*text)() const, const Checkpoint& checkpoint, Control& control) {
  std::string found;
  Problems problems;
  if (control.rank() == 0) attempt(problems, [&] { found = (checkpoint.*text)(); });
  control.agree(problems);
  return control.broadcast(found);
}

}  // namespace

Parent resume_from(const std::vector<fs::path>& candidates, const fs::path& run, Training& training, Device& device,
                   Control& control, const hdf5::Parallel* parallel) {
  for (std::size_t i = 0;; ++i) try {
      const Checkpoint checkpoint(candidates[i], control, parallel);
      training.restore([&](StateDict& state) { load(checkpoint, state, device, control); });
      const auto text = [&](auto which) { return recorded(which, checkpoint, control); };
      return {candidates[i],
              checkpoint.manifest(),
              text(&Checkpoint::changes),
              text(&Checkpoint::git_sha),
              text(&Checkpoint::libraries),
              companions_of(checkpoint, control),
              kept_step(checkpoint, run, control)};
    } catch (const Error& error) {
      // All ranks throw the same error, so that all try the next checkpoint.
      if (error.code() != Exit::file || i + 1 == candidates.size()) throw;
      if (control.rank() == 0) fmt::print(stderr, "{}; trying the checkpoint before\n", error.what());
    }
}

}  // namespace tessera
