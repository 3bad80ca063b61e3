#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/training/loop/training.hpp"
#include "app/training/start/run_request.hpp"
#include "core/comm/control.hpp"
#include "io/checkpoint/companions.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/hdf5/parallel.hpp"

namespace tessera {

/// The checkpoints that a run may resume from, the best first; empty: a fresh start. Throws Error{file} on all ranks if
/// a directory's checkpoints are all invalid, or if `none` would train over checkpoints. Collective over the world.
std::vector<std::filesystem::path> beginnings(const Resume& resume, const std::filesystem::path& run, Control& control);

/// The checkpoint that a run resumes from.
struct Parent {
  std::filesystem::path folder;
  Manifest manifest;
  std::string changes;     ///< Origin::changes at the save
  std::string git_sha, libraries;  ///< of the program that saved it
  Companions companions;
  std::int64_t kept = -1;  ///< its step if it is a step folder of the run directory; -1: it lies elsewhere
};
/// Loads the first of `candidates` whose payload is undamaged, for the run in `run`; reports what was wrong with those
/// before it. Collective over the world.
Parent resume_from(const std::vector<std::filesystem::path>& candidates, const std::filesystem::path& run,
                   Training& training, Device& device, Control& control, const hdf5::Parallel* parallel);

}  // namespace tessera
