#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "core/config/sections/model.hpp"
#include "core/config/sections/optimizer.hpp"
#include "core/state/state_dict.hpp"
#include "io/checkpoint/companions.hpp"

namespace tessera {

/// The format that this build writes. It reads every minor version of the same major version up to its own.
struct FormatVersion {
  std::int64_t major = 1, minor = 5;
  std::string text() const;
  bool operator==(const FormatVersion&) const = default;
};

/// Facts about a save besides its state, for people and for the checks of a restart. Equal on all ranks.
struct Origin {
  std::string run_id, version, deck;  ///< deck: the resolved one
  std::string model_sha256;           ///< model_fingerprint(): sha256 of the keys that fix tensors
  std::uint64_t corpus_hash = 0;
  int world_size = 1;
  ExpertWeights experts = ExpertWeights::single;  ///< layout of expert projections in the file
  std::string command_line, hosts;
  std::string parent, parent_digest;  ///< folder and content digest of the checkpoint it was loaded from, or empty
  std::string git_sha, libraries;     ///< of the program: its commit; "name version, ...", compiler and CPU too
  std::string mesh;                   ///< how the ranks were used: "data 4"
  std::int64_t steps = 0;             ///< of the whole run
  OptimizerConfig optimizer;          ///< needed for its schedule
  std::string changes;                ///< by `train --allow-change` so far: "step N: key: before -> now", a line each
  std::string library_plans;          ///< to_text() of LibraryPlans
  Companions companions = {};
};

/// The file_type that every file of a checkpoint but the deck has.
inline constexpr const char* checkpoint_file_type = "tessera.checkpoint";

/// manifest.json, the last file of a checkpoint folder: with it the folder is complete. Names the others with their
/// sizes.
struct Manifest {
  FormatVersion format;
  StateCounters counters;
  std::string content_digest;  ///< 16 hex digits
  std::string run_id, version, deck_sha256, model_sha256, corpus_hash;
  std::int64_t world_size = 1;
  ExpertWeights experts = ExpertWeights::single;
  std::map<std::string, std::int64_t> files;      ///< name -> bytes
  std::map<std::string, std::string> structures;  ///< HDF5 file -> hex(structure_digest()); empty before 1.2

  std::int64_t bytes() const;
};

/// The manifest as a JSON object that holds a digest of itself.
std::string to_json(const Manifest& manifest);
/// Throws Error{file} if the text is no manifest, was changed, or is of a version that this build cannot read.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

/// Whether the text is a manifest of a version that a later program writes: no more can be said of that checkpoint.
bool of_later_format(const std::string& text);

/// The SHA-256 (FIPS 180-4) of bytes, as 64 lower-case hex digits.
std::string sha256(std::string_view bytes);

/// sha256() of the deck's model section, without keys that do not fix tensors: moe.weights, moe.balance_coef and others
/// that a restart may change.
std::string model_fingerprint(const ModelConfig& model);

}  // namespace tessera
