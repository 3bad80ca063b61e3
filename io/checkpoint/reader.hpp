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

/// A checkpoint folder, opened: manifest, structure of the files and their tables agree with each other. All but
/// payload is as it was saved, or each dataset has been asked. Throws Error{file} that names what does not fit.
class Checkpoint final : public TensorSource {
 public:
  /// By this process alone, without MPI.
  explicit Checkpoint(const std::filesystem::path& folder);
  /// By all ranks, to load from it: rank 0 alone goes through the structure and tells the others. With `parallel`,
  /// which may be null, payload is read by HDF5 and MPI-IO. All ranks throw alike. Collective.
  Checkpoint(const std::filesystem::path& folder, Control& control, const hdf5::Parallel* parallel = nullptr);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  std::string name() const override { return folder_.string(); }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  bool has_digests() const override { return true; }
  std::string deck() const;
  /// The tokenizer.json of its run; empty where that has none.
  std::string tokenizer() const;
  /// Text of LibraryPlans; empty where the libraries had no choice, and in format 1.0.
  std::string library_plans() const;
  std::string changes() const;  ///< Origin's; empty before format 1.4
  /// Holds no optimizer state: no run can go on from it, though one may start with its weights.
  bool weights_only() const { return !manifest_.files.contains(optimizer_file); }
  std::string reason_not_resumable() const;  ///< why no run goes on from it; empty: a run of its model does

  void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const override;
  void read_each(const StoredTensors& stored, std::span<const Slab> slabs, const Take& take) const override;
  /// Reads every byte and opens every dataset; what is wrong, a line each, with the tensor's name.
  std::vector<std::string> verify() const;

 private:
  void read_parallel(const StoredTensors& stored, std::span<const Slab> slabs, const Take& take) const;
  std::string provenance(const char* name) const;
  void read_manifest();
  void read_structure();
  void open_payload();
  void check_digest() const;

  std::filesystem::path folder_;
  const hdf5::Parallel* parallel_ = nullptr;
  Manifest manifest_;
  std::vector<StoredTensor> tensors_;
  std::vector<PosixFile> files_;  ///< those of payload_files that there are
};

/// How a source may differ from the weights that take its values.
struct Fit {
  std::vector<std::string> may_miss;  ///< tensors that keep what they hold where the source has none of the name
  enum class Extra { refused, ignored } extra = Extra::refused;
};

/// What keeps the weights `wanted` from taking the source's values, a line each: missing, extra, misshapen or mistyped
/// tensors, other axes. Optimizer state of the source is passed over; bf16 fits fp32, and learned positions of longer
/// sequences fit shorter ones, which take the first. Not collective.
std::vector<std::string> misfits(const TensorSource& source, const std::vector<StateTensor>& wanted, const Fit& fit);

/// The weights of `state`, which holds nothing else, take the source's values; those that it lacks are left alone.
/// misfits() found nothing. Throws as load() does. Collective.
void load_weights(const TensorSource& source, StateDict& state, Device& device, Control& control);

/// The tensors of `state` take the checkpoint's values, whatever ranks and expert layout wrote it, and so do the
/// counters. Strict: missing, extra, misshapen or mistyped tensors, and missing, extra or mistyped counters of the
/// optimizer's rules, are an Error{file} with a line each, before anything is read; payload that does not fit its
/// digest is one too. All ranks throw alike. Collective.
void load(const Checkpoint& checkpoint, StateDict& state, Device& device, Control& control);

/// Why a folder is no sound checkpoint, payload left out; empty: it is.
std::string why_invalid(const std::filesystem::path& folder);
/// Why no run goes on from a folder, though one may start with its weights; empty: a run of its model does.
std::string reason_not_resumable(const std::filesystem::path& folder);

/// A step folder as it is, or the newest valid step of a run directory. Throws Error{file}.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace tessera
