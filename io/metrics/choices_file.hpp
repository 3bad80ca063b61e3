#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/config/mixture_blocks.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

/// Of which run and data a record of choices is: a line of JSON at the head of its file.
struct ChoicesHeader {
  std::int64_t blocks = 0;         ///< of the model
  MixtureBlocks with_experts = {};  ///< those of them that have experts
  std::int64_t experts = 0, top_k = 0;
  std::int64_t length = 0, global = 0;  ///< tokens of a sequence, sequences of a step
  std::uint64_t seed = 0, corpus = 0;
  std::uint64_t order = 0;  ///< digest of what else decides which window a sample is
  std::uint64_t run = 0;    ///< digest of the path of the run directory that it was written for
  std::int64_t first_step = 1, first_sample = 0;  ///< the first step recorded, and the number of its first sample

  std::int64_t layers() const { return with_experts.among(blocks); }
  std::int64_t slots() const { return global * length * top_k; }  ///< of a step in a layer
  std::int64_t bytes_of_step() const { return layers() * slots() * 2; }
  std::int64_t sample_of(std::int64_t step) const { return first_sample + (step - first_step) * global; }
};

/// In what a record differs from what a run needs, as "experts 8 instead of 6, ..."; empty: it fits. Leaves out run and
/// first step; the first samples are compared by sample_of(). Pure.
std::string difference_of(const ChoicesHeader& record, const ChoicesHeader& needed);

/// A record of the choices of experts in every slot of a run's steps. Behind a head of 4 KiB follow step, layer with
/// experts, token of the global batch and slot: u16 numbers in the host's order of bytes, the expert + 1. So a place
/// that nobody wrote is 0, and any number of ranks reads what any wrote. Local; ranks write and read at the same time.
class ChoicesFile {
 public:
  static constexpr std::int64_t head_bytes = 4096;
  static constexpr const char* beginning = "{\"choices_version\":";

  enum class Mode { read, write };
  /// Opens a record. Throws Error{file} if it is none, Error{file or environment} if it cannot be opened.
  ChoicesFile(const std::filesystem::path& path, Mode mode);

  /// Makes the file with no steps, in place of one that is there. Throws Error{environment}.
  static void create(const std::filesystem::path& path, const ChoicesHeader& header);
  /// Drops the steps behind `step`.
  static void keep_up_to(const std::filesystem::path& path, std::int64_t step);

  const ChoicesHeader& header() const { return header_; }
  /// The last step that the file has a part of; first_step - 1 without steps.
  std::int64_t last_step() const;
  /// Writes choices of a layer, numbered among those with experts, from a slot of the global batch on. Throws
  /// Error{environment}.
  void write(std::int64_t step, std::int64_t layer, std::int64_t slot, std::span<const std::int32_t> choices);
  /// Reads them. Throws Error{file} if they are not there, or are no choices: each token has top_k experts once.
  void read(std::int64_t step, std::int64_t layer, std::int64_t slot, std::span<std::int32_t> choices) const;

 private:
  std::int64_t place(std::int64_t step, std::int64_t layer, std::int64_t slot) const;

  std::filesystem::path path_;
  ChoicesHeader header_;
  PosixFile file_;
};

}  // namespace tessera
