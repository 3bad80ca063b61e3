#include "io/convert/stored_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/optim/average.hpp"
#include "io/checkpoint/averages.hpp"
#include "io/checkpoint/room.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/checkpoint/structure.hpp"
#include "io/deck/deck.hpp"
#include "io/files/new_folder.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

class StoredModel final : public ModelReader {
 public:
  StoredModel(const fs::path& folder, Extent extent) : checkpoint_(folder) {
    const Manifest& manifest = checkpoint_.manifest();
    facts_.counters = manifest.counters;
    Origin& origin = facts_.origin;
    origin.run_id = manifest.run_id;
    origin.deck = checkpoint_.deck();
    origin.companions = checkpoint_.companions();
    origin.model_sha256 = manifest.model_sha256;
    origin.corpus_hash = std::stoull(manifest.corpus_hash, nullptr, 16);
    origin.world_size = static_cast<int>(manifest.world_size);
    origin.experts = manifest.experts;
    origin.changes = checkpoint_.changes();
    origin.library_plans = checkpoint_.library_plans();
    origin.parent = folder.string();
    origin.parent_digest = manifest.content_digest;
    read_deck();
    const auto add = [&](const char* name) {
      if (manifest.files.contains(name)) add_file(name, extent);
    };
    if (extent != Extent::averages) add(model_file);
    if (extent != Extent::weights) add(optimizer_file);
    if (facts_.tensors.empty()) throw Error(Exit::file, without_averages_text(folder.string()));
    sums_.assign(facts_.tensors.size(), 0);
  }

  const ModelFacts& facts() const override { return facts_; }

  void read(std::size_t index, std::int64_t first, std::int64_t count, void* to) override {
    checkpoint_.read(*stored_[index], first, count, to);
    sums_[index] += host_digest(to, stored_[index]->type, count, first);
  }
  void finish(std::size_t index) override {
    const StoredTensor& tensor = *stored_[index];
    if (sums_[index] != tensor.digest)
      throw Error(Exit::file, fmt::format("{}: {} holds other bytes than were saved",
                                          (checkpoint_.folder() / file_of(tensor.slot)).string(), tensor.path()));
  }

 private:
  void read_deck() {
    const Deck deck = parse_saved_deck(facts_.origin.deck, (checkpoint_.folder() / deck_file).string());
    facts_.data = deck.config.data.kind;
    facts_.model = deck.config.model;
    facts_.origin.steps = deck.config.run.steps;
    facts_.origin.optimizer = deck.config.optimizer;
  }

  /// Adds the tensors of one file, with the attributes of their datasets; of averages as if they were the weights.
  void add_file(const char* name, Extent extent) {
    const hdf5::File file = hdf5::File::open(checkpoint_.folder() / name);
    if (file.has("/", "mesh")) facts_.origin.mesh = file.text("/", "mesh");
    for (const StoredTensor& tensor : checkpoint_.tensors()) {
      if (file_of(tensor.slot) != std::string_view(name)) continue;
      if (extent == Extent::averages && tensor.slot != Average::slot) continue;
      const std::string path = file.has(tensor.path()) ? tensor.path() : expert_path(tensor.path(), 0);
      const std::string role = file.text(path, "role");
      const auto known = role_named(role);
      if (!known)
        throw Error(Exit::file, fmt::format("{}: {} has the unknown role {}", file.path().string(), path, role));
      const std::string slot = extent == Extent::averages ? "model" : tensor.slot;
      facts_.tensors.push_back({slot, tensor.name, tensor.shape, tensor.type, *known, {}, tensor.tied_to});
      stored_.push_back(&tensor);
    }
  }

  Checkpoint checkpoint_;
  ModelFacts facts_;
  std::vector<const StoredTensor*> stored_;  ///< by index in facts_.tensors
  std::vector<std::uint64_t> sums_;
};

class NewCheckpoint final : public ModelWriter {
 public:
  NewCheckpoint(const fs::path& path, const ModelFacts& facts)
      : origin_(facts.origin), folder_(path), digests_(facts.tensors.size()) {
    state_.tensors = facts.tensors;
    state_.counters = facts.counters;
    std::size_t count = 1;
    for (const StateTensor& tensor : state_.tensors) count = std::max(count, file_index(tensor.slot) + 1);
    refuse_if_too_big(folder_.path(), state_.tensors, path.string());
    structure_.emplace(folder_.path(), count, state_, origin_);
    structure_->create();
    structure_->reserve();
    structure_->lay_out(hdf5::Parallel::alone());
    structure_->close();
    files_ = structure_->open(PosixFile::Mode::write);
  }

  void write(std::size_t index, std::int64_t first, std::int64_t count, const void* from) override {
    const StoredTensor& tensor = structure_->tensors[index];
    const std::int64_t size = size_of(tensor.type);
    digests_[index] += host_digest(from, tensor.type, count, first);
    for (const StoredTensor::Dataset& dataset : tensor.datasets) {
      const std::int64_t begin = std::max(first, dataset.first), end = std::min(first + count, dataset.end());
      if (begin < end)
        files_[file_index(tensor.slot)].write(dataset.offset + (begin - dataset.first) * size,
                                              static_cast<const std::byte*>(from) + (begin - first) * size,
                                              (end - begin) * size);
    }
  }

  std::optional<std::string> commit() override {
    structure_->take_digests(digests_);
    for (PosixFile& file : files_) file.sync();
    structure_->describe();
    structure_->finish();
    structure_->complete(nullptr);
    folder_.commit();
    return structure_->content_digest;
  }

 private:
  StateDict state_;
  const Origin origin_;
  NewFolder folder_;
  std::optional<CheckpointFiles> structure_;
  std::vector<PosixFile> files_;
  std::vector<std::uint64_t> digests_;
};

}  // namespace

std::unique_ptr<ModelReader> read_checkpoint(const fs::path& folder, Extent extent) {
  return std::make_unique<StoredModel>(folder, extent);
}

std::unique_ptr<ModelWriter> write_checkpoint(const fs::path& path, const ModelFacts& facts) {
  if (const auto step = step_named((path / "").parent_path().filename().string()); step && *step != facts.counters.step)
    throw Error(Exit::file, fmt::format("{}: is the name of another step than {}", path.string(), facts.counters.step));
  return std::make_unique<NewCheckpoint>(path, facts);
}

}  // namespace tessera
