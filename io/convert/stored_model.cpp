#include "io/convert/stored_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

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
    origin.tokenizer = checkpoint_.tokenizer();
    origin.model_sha256 = manifest.model_sha256;
    origin.corpus_hash = std::stoull(manifest.corpus_hash, nullptr, 16);
    origin.world_size = static_cast<int>(manifest.world_size);
    origin.experts = manifest.experts;
    origin.changes = checkpoint_.changes();
    origin.library_plans = checkpoint_.library_plans();
    origin.parent = folder.string();
    origin.parent_digest = manifest.content_digest;
    read_deck();
    for (const char* name : {model_file, optimizer_file})
      if (manifest.files.contains(name) && (extent == Extent::all || name == model_file)) add_file(name);
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
    facts_.model = deck.config.model;
    facts_.origin.steps = deck.config.run.steps;
    facts_.origin.optimizer = deck.config.optimizer;
  }

  /// Its tensors, with the attributes that only their datasets know.
  void add_file(const char* name) {
    const hdf5::File file = hdf5::File::open(checkpoint_.folder() / name);
    if (file.has("/", "mesh")) facts_.origin.mesh = file.text("/", "mesh");
    for (const StoredTensor& tensor : checkpoint_.tensors()) {
      if (file_of(tensor.slot) != std::string_view(name)) continue;
      const std::string path = file.has(tensor.path()) ? tensor.path() : expert_path(tensor.path(), 0);
      const std::string role = file.text(path, "role");
      const auto known = role_named(role);
      if (!known)
        throw Error(Exit::file, fmt::format("{}: {} has a role that is none: {}", file.path().string(), path, role));
      facts_.tensors.push_back({tensor.slot, tensor.name, tensor.shape, tensor.type, *known, {}, tensor.tied_to});
      stored_.push_back(&tensor);
    }
  }

  Checkpoint checkpoint_;
  ModelFacts facts_;
  std::vector<const StoredTensor*> stored_;  ///< of facts_.tensors
  std::vector<std::uint64_t> sums_;
};

class NewCheckpoint final : public ModelWriter {
 public:
  NewCheckpoint(const fs::path& path, const ModelFacts& facts)
      : facts_(facts), folder_(path), digests_(facts.tensors.size()), places_(facts.tensors.size()) {
    std::vector<const char*> names;
    for (const StateTensor& tensor : facts_.tensors)
      if (names.empty() || names.back() != std::string_view(file_of(tensor.slot)))
        names.push_back(file_of(tensor.slot));
    refuse_if_too_big(folder_.path(), facts_.tensors, path.string());
    for (const char* name : names) {
      structures_.emplace_back(folder_.path() / name, facts_.tensors, facts_.origin.experts);
      CheckpointFile& out = structures_.back();
      create(out);
      lay_out(out, facts_.tensors, facts_.origin.experts, hdf5::Parallel::alone());
      out.close();
      for (const DatasetPlace& place : out.places) places_[place.tensor].push_back({place, files_.size()});
      files_.emplace_back(folder_.path() / name, PosixFile::Mode::write);
      files_.back().reserve(out.end(facts_.tensors));
    }
  }

  void write(std::size_t index, std::int64_t first, std::int64_t count, const void* from) override {
    const StateTensor& tensor = facts_.tensors[index];
    const std::int64_t size = size_of(tensor.type);
    if (const std::uint64_t wrong = non_finite(from, tensor.type, count); wrong > 0)
      throw Error(Exit::numerical,
                  fmt::format("{} is refused: {} elements of {} from its {}th on are not finite in {}",
                              folder_.path().string(), wrong, tensor.path(), first, name_of(tensor.type)));
    digests_[index] += host_digest(from, tensor.type, count, first);
    for (const auto& [place, file] : places_[index]) {
      const std::int64_t begin = std::max(first, place.first), end = std::min(first + count, place.first + place.count);
      if (begin < end)
        files_[file].write(place.offset + (begin - place.first) * size,
                           static_cast<const std::byte*>(from) + (begin - first) * size, (end - begin) * size);
    }
  }

  std::optional<std::string> commit() override {
    ContentDigest content;
    for (std::size_t i = 0; i < digests_.size(); ++i) content.add(facts_.tensors[i].path(), digests_[i]);
    content.add(facts_.counters);
    const std::string digest = hex(content.value());
    for (PosixFile& file : files_) file.sync();
    for (CheckpointFile& out : structures_) {
      describe(out, facts_.tensors, digests_, facts_.counters, digest, facts_.origin);
      out.close();
    }
    StateDict state;
    state.tensors = facts_.tensors;
    state.counters = facts_.counters;
    complete(folder_.path(), structures_, nullptr, state, digest, facts_.origin);
    folder_.commit();
    return digest;
  }

 private:
  struct Part {
    DatasetPlace place;
    std::size_t file;
  };
  ModelFacts facts_;
  NewFolder folder_;
  std::vector<CheckpointFile> structures_;
  std::vector<PosixFile> files_;
  std::vector<std::uint64_t> digests_;
  std::vector<std::vector<Part>> places_;  ///< by tensor
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
