#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/checkpoint/posix_file.hpp"

namespace tessera {

/// A tensor of a checkpoint: canonical, wherever its parts lie.
struct StoredTensor {
  struct Part {
    std::int64_t first, count;  ///< elements of the canonical tensor
    std::int64_t offset;        ///< bytes in the file
  };
  std::string slot, name;
  Shape shape;
  DType type = DType::f32;
  std::string axes;
  std::uint64_t digest = 0;
  std::vector<Part> parts;  ///< ascending, without gaps

  std::string path() const { return "/" + slot + "/" + name; }
};

/// A checkpoint folder, opened: its manifest, the structure of its files and their tables agree with each other. Reads
/// by itself, without MPI; every rank opens its own. Throws Error{file} that names what does not fit.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  std::string deck() const;

  /// Elements [first, first + count) into host memory.
  void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const;
  /// Reads every byte of payload; what is wrong, a line each, with the tensor's name.
  std::vector<std::string> verify() const;

 private:
  void read_file(const char* name);
  void check_digest() const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<StoredTensor> tensors_;
  std::vector<PosixFile> files_;  ///< model, optimizer
};

/// The tensors of `state` take the checkpoint's values, whatever ranks and expert layout wrote it, and so do the
/// counters. Strict: missing, extra, misshapen or mistyped tensors are an Error{file} with a line each, before anything
/// is read; payload that does not fit its digest is one too. All ranks throw alike. Collective.
void load(const Checkpoint& checkpoint, StateDict& state, Device& device, Control& control);

/// Why a folder is no sound checkpoint, payload left out; empty: it is.
std::string why_invalid(const std::filesystem::path& folder);

/// A step folder as it is, or the newest valid step of a run directory. Throws Error{file}.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace tessera
