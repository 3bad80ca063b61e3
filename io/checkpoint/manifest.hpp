#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "core/config/config.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// The format that this build writes; it reads every minor version of the same major one up to its own.
struct FormatVersion {
  std::int64_t major = 1, minor = 4;
  std::string text() const;
  bool operator==(const FormatVersion&) const = default;
};

/// What is known of a save besides its state: facts for people, and what a restart compares. Equal on all ranks.
struct Origin {
  std::string run_id, version, deck;  ///< deck: the resolved one
  std::string model_sha256;           ///< of what fixes the tensors; model_fingerprint()
  std::uint64_t corpus_hash = 0;
  int world_size = 1;
  ExpertWeights experts = ExpertWeights::single;  ///< layout of expert projections in the file
  std::string command_line, hosts;
  std::string parent, parent_digest;  ///< folder and content digest of the checkpoint that it came from, or empty
  std::string git_sha, libraries;     ///< of the program: its commit; "name version, ..."
  std::string mesh;                   ///< how the ranks were used: "data 4"
  std::int64_t steps = 0;             ///< of the whole run
  OptimizerConfig optimizer;          ///< for its schedule
  std::string changes;                ///< by `train --allow-change` so far, "step N: key: before -> now" a line
  std::string library_plans;          ///< to_text() of LibraryPlans
  std::string tokenizer = {};         ///< tokenizer.json, or empty
};

/// What every file of a checkpoint but the deck says that it is.
inline constexpr const char* checkpoint_file_type = "tessera.checkpoint";

/// manifest.json: the last file of a checkpoint folder, and what makes it one. Names the others with their sizes.
struct Manifest {
  FormatVersion format;
  StateCounters counters;
  std::string content_digest;  ///< 16 hex digits
  std::string run_id, version, deck_sha256, model_sha256, corpus_hash;
  std::int64_t world_size = 1;
  ExpertWeights experts = ExpertWeights::single;
  std::map<std::string, std::int64_t> files;      ///< name -> bytes
  std::map<std::string, std::string> structures;  ///< of an HDF5 file -> hex(structure_digest()); none before 1.2

  std::int64_t bytes() const;
};

/// A JSON object that carries a digest of itself.
std::string to_json(const Manifest& manifest);
/// Throws Error{file} when the text is no manifest, was changed, or is of a version that this build cannot read.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

/// sha256 of the deck's model section without what does not fix tensors: moe.weights, moe.balance_coef, moe.z_coef.
std::string model_fingerprint(const ModelConfig& model);

}  // namespace tessera
