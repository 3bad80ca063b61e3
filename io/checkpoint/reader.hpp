#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/checkpoint/tensor_source.hpp"
#include "io/files/posix_file.hpp"
#include "io/hdf5/parallel.hpp"

namespace tessera {

/// An opened checkpoint folder. Manifest, files' structure and tables have been checked against each other: by the
/// digest of the structure, or dataset by dataset. Throws Error{file} that names what does not match. Throws
/// Error{environment} with the file's name if something keeps it from being read now, which says nothing about it.
class Checkpoint final : public TensorSource {
 public:
  /// Opens for this process alone, without MPI.
  explicit Checkpoint(const std::filesystem::path& folder);
  /// Opens for all ranks: rank 0 alone reads the structure and broadcasts it. `parallel` not null: payload is read by
  /// HDF5 and MPI-IO. All ranks throw alike. Collective over the world.
  Checkpoint(const std::filesystem::path& folder, Control& control, const hdf5::Parallel* parallel = nullptr);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  std::string name() const override { return folder_.string(); }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  bool has_digests() const override { return true; }
  std::string deck() const;
  Companions companions() const;
  /// The text of LibraryPlans; empty if the libraries had no choice, and in format 1.0.
  std::string library_plans() const;
  std::string changes() const;    ///< Origin::changes; empty before format 1.4
  std::string git_sha() const;    ///< Origin::git_sha
  std::string libraries() const;  ///< Origin::libraries
  /// Whether it holds no optimizer state. A run may start with its weights, but none can go on from it.
  bool weights_only() const { return !manifest_.files.contains(optimizer_file); }
  std::string reason_not_resumable() const;  ///< why no run can go on from it; empty: a run of its model can

  void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const override;
  void read_each(const std::vector<StateTensor>& held, const StoredTensors& stored, const SlabWork& work,
                 On on) const override;
  /// Reads every byte and opens every dataset. Returns what is wrong, a line each with the tensor's name.
  std::vector<std::string> verify() const;

 private:
  std::string attribute(const char* place, const char* name) const;
  void read_manifest();
  void read_structure();
  void open_payload();
  void check_digest() const;

  std::filesystem::path folder_;
  const hdf5::Parallel* parallel_ = nullptr;
  Manifest manifest_;
  std::vector<StoredTensor> tensors_;
  std::vector<PosixFile> files_;  ///< those of payload_files that exist
};

/// How a source may differ from the weights that are to take its values.
struct Fit {
  std::vector<std::string> may_miss;  ///< tensors that keep their values if the source has none of the name
  std::vector<std::string> may_grow;  ///< tensors that may have fewer rows there: the further rows keep their values
  enum class Extra { refused, ignored } extra = Extra::refused;
};

/// The reasons why the weights `wanted` cannot take the source's values, a line each: missing, extra, misshapen or
/// mistyped tensors, other axes. The source's optimizer state is ignored. bf16 fits fp32; learned positions of longer
/// sequences fit shorter ones, which take the first rows. Local.
std::vector<std::string> misfits(const TensorSource& source, const std::vector<StateTensor>& wanted, const Fit& fit);

/// Loads the source's values into the weights of `state`, which holds nothing else; weights that it lacks keep theirs.
/// misfits() must have found nothing. Throws as load() does. Collective over the world.
void load_weights(const TensorSource& source, StateDict& state, Device& device, Control& control);

/// Loads tensors and counters of `state` from a checkpoint, whatever ranks and expert layout wrote it. Strict. Missing,
/// extra, misshapen or mistyped tensors, and missing, extra or mistyped counters of the rules, are one Error{file} with
/// a line each. It comes before anything is read. Payload that does not match its digest is an Error{file} too. All
/// ranks throw alike. Collective over the world.
void load(const Checkpoint& checkpoint, StateDict& state, Device& device, Control& control);

/// Why a folder is no sound checkpoint, payload not read; empty: it is sound. Throws Error{environment} if it cannot be
/// read now: it must not be taken for damaged, passed over or replaced then.
std::string why_invalid(const std::filesystem::path& folder);
/// Why no run can go on from a folder, though one may start with its weights; empty: a run of its model can. Throws as
/// why_invalid().
std::string reason_not_resumable(const std::filesystem::path& folder);

/// Whether a run has begun to write its records there, or its steps lie there. Throws as step_folders().
bool is_run(const std::filesystem::path& folder);

/// "it holds runs, ...": what to name in the place of a folder that holds run directories with steps; empty for others.
std::string runs_text(const std::filesystem::path& folder);

/// What is wrong with a path that is no folder and was given as a checkpoint or run directory.
Error no_checkpoint(const std::filesystem::path& path);

/// `path` itself if it is a step folder, else the newest valid step of a run directory. Says on stderr which later ones
/// it passes over, and why. Throws Error{file}, and as why_invalid().
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace tessera
