#include "io/convert/hf_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/optim/adamw.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/convert/hf_companions.hpp"
#include "io/convert/hf_config.hpp"
#include "io/convert/hf_decoded.hpp"
#include "io/convert/json_file.hpp"
#include "io/convert/safetensors.hpp"
#include "io/deck/deck.hpp"
#include "io/files/access.hpp"
#include "io/files/new_folder.hpp"
#include "io/files/text_file.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

/// Divides elements [first, first + count) of a row-major matrix with rows of `width` elements into at most three
/// rectangles; calls f(row, rows, column, columns) for each.
template <class F>
void each_rectangle(std::int64_t first, std::int64_t count, std::int64_t width, const F& f) {
  while (count > 0) {
    const std::int64_t column = first % width;
    const bool whole = column == 0 && count >= width;
    const std::int64_t rows = whole ? count / width : 1, columns = whole ? width : std::min(count, width - column);
    f(first / width, rows, column, columns);
    first += rows * columns;
    count -= rows * columns;
  }
}

/// Transposes a matrix: to[r][c] = from[c][r]. Strides are elements between rows.
template <class Bits>
void transpose(Bits* to, std::int64_t to_stride, const Bits* from, std::int64_t from_stride, std::int64_t rows,
               std::int64_t columns) {
  constexpr std::int64_t line = 64 / sizeof(Bits);  // side of a tile: a cache line on both sides
  for (std::int64_t r0 = 0; r0 < rows; r0 += line)
    for (std::int64_t c0 = 0; c0 < columns; c0 += line)
      for (std::int64_t r = r0; r < std::min(r0 + line, rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + line, columns); ++c)
          to[r * to_stride + c] = from[c * from_stride + r];
}
void transpose(DType type, void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
               std::int64_t rows, std::int64_t columns) {
  const auto as = [&]<class Bits>(Bits) {
    transpose(static_cast<Bits*>(to), to_stride, static_cast<const Bits*>(from), from_stride, rows, columns);
  };
  size_of(type) == 4 ? as(std::uint32_t{}) : as(std::uint16_t{});
}

constexpr std::int64_t strip = 32;  // columns that are transposed at a time, a line of the file each

std::byte* at(void* elements, std::int64_t index, DType type) {
  return static_cast<std::byte*>(elements) + index * size_of(type);
}
const std::byte* at(const void* elements, std::int64_t index, DType type) {
  return static_cast<const std::byte*>(elements) + index * size_of(type);
}

/// A tensor and the shard that holds it.
struct ShardTensor {
  std::size_t file;
  SourceTensor tensor;
};

/// The safetensors files of a folder, and the file of each tensor.
class Shards {
 public:
  explicit Shards(const fs::path& folder) : folder_(folder) {
    if (entry_at(folder / hf_single_file) != Entry::none) {
      open(hf_single_file);
      return;
    }
    const fs::path path = folder / hf_index_file;
    if (entry_at(path) == Entry::none)
      throw Error(Exit::file, fmt::format("{}: holds {}, and neither {} nor {}", folder.string(), hf_config_file,
                                          hf_single_file, hf_index_file));
    const Json index = read_json_object(path);
    if (!index.value("weight_map", Json()).is_object())
      throw Error(Exit::file, path.string() + ": has no weight_map: it is no index of safetensors");
    std::set<std::string> names;
    for (const auto& [tensor, name] : index["weight_map"].items()) {
      if (!name.is_string() || fs::path(name.get<std::string>()).filename() != name.get<std::string>())
        throw Error(Exit::file,
                    fmt::format("{}: {}: {} names no file of the folder", path.string(), tensor, name.dump()));
      names.insert(name);
    }
    for (const std::string& name : names) open(name);
    for (const auto& [tensor, name] : index["weight_map"].items())
      if (!tensors_.contains(tensor))
        throw Error(Exit::file, fmt::format("{}: {}: {} has no such tensor", path.string(), tensor, name.dump()));
  }

  /// Finds a tensor by its name, or by its name in a folder of a model without head ("wte.weight"); null if absent.
  const ShardTensor* find(const std::string& name) const {
    for (const std::string& one : {name, name.substr(name.find('.') + 1)})
      if (const auto found = tensors_.find(one); found != tensors_.end()) return &found->second;
    return nullptr;
  }
  const std::map<std::string, ShardTensor>& all() const { return tensors_; }
  const PosixFile& file(std::size_t index) const { return files_[index]; }

 private:
  void open(const std::string& name) {
    for (SourceTensor& tensor : list_safetensors(folder_ / name)) {
      const std::string key = tensor.name;
      if (!tensors_.emplace(key, ShardTensor{files_.size(), std::move(tensor)}).second)
        throw Error(Exit::file, (folder_ / name).string() + ": " + key + " is in another file too");
    }
    files_.emplace_back(folder_ / name, PosixFile::Mode::read);
  }

  fs::path folder_;
  std::map<std::string, ShardTensor> tensors_;
  std::vector<PosixFile> files_;
};

class HfReader final : public ModelReader {
 public:
  explicit HfReader(const fs::path& folder)
      : folder_(folder), foreign_(read_hf_config(folder / hf_config_file)), shards_(folder) {
    RunConfig& config = foreign_.config;
    facts_.model = config.model;
    facts_.counters.seed = config.run.seed;
    facts_.counters.rules = fresh_adamw_counters();
    facts_.origin.model_sha256 = model_fingerprint(config.model);
    facts_.origin.optimizer = config.optimizer;
    facts_.origin.parent = folder.string();
    facts_.told = foreign_.told;
    facts_.window = foreign_.window;
    facts_.tensors = canonical_weights(facts_.model);
    Problems problems;
    std::set<std::string> used;
    for (StateTensor& tensor : facts_.tensors) place(tensor, used, problems);
    for (const auto& [name, source] : shards_.all())
      if (!used.contains(name) && !is_redundant(foreign_.family, facts_.model, name))
        complain("extra", fmt::format("{} {} is no tensor of this {}", name, source.tensor.shape.text(),
                                      name_of(foreign_.family)), problems);
    for (const auto& [kind, count] : complaints_)
      if (count > shown)
        problems.add(Exit::file, fmt::format("{}: {}: and {} more", folder.string(), kind, count - shown));
    problems.raise();
    if (coded_ > 0) tell_of_codes();
    config.precision.compute = wide_ ? Compute::fp32 : Compute::bf16;
    facts_.origin.deck =
        fmt::format("# Made from {}: its model section describes the weights, the rest is for a run to say.\n",
                    (folder / hf_config_file).string()) +
        resolved_text({config, {}});
    if (const ShardTensor* head = shards_.find("lm_head.weight"); head && facts_.model.tied_head) require_tied(*head);
  }

  const ModelFacts& facts() const override { return facts_; }

  void read(std::size_t index, std::int64_t first, std::int64_t count, void* to) override {
    const DType type = facts_.tensors[index].type;
    for (const ReadPiece& piece : pieces_[index]) {
      const std::int64_t begin = std::max(first, piece.place.first), stop = std::min(first + count, piece.place.end());
      if (begin < stop) load(piece, begin - piece.place.first, stop - begin, at(to, begin - first, type), type);
    }
  }
  void finish(std::size_t) override {}  // the format has no digests

 private:
  struct ReadPiece {
    ForeignPiece place;
    const ShardTensor* source;         ///< null: of codes
    std::optional<CodedWeight> codes;  ///< empty: of values
  };

  void tell_of_codes() {
    const std::string text = fmt::format(
        "{} of its weights are codes: here are the values that they stand for; what the masters of their training had "
        "beyond them, and the optimizer's state, is not in the folder",
        coded_);
    facts_.told += (facts_.told.empty() ? "" : "; ") + text;
  }

  /// Throws Error{file} if a head that the configuration ties to the embedding has other values than it.
  void require_tied(const ShardTensor& head) {
    constexpr std::int64_t most = std::int64_t{1} << 20;  // elements compared at a time
    const ReadPiece& table = pieces_.front().front();
    bool differs = table.codes || head.tensor.shape != table.place.shape || !head.tensor.unreadable.empty();
    std::vector<float> one, other;
    for (std::int64_t first = 0; first < table.place.shape.elements() && !differs; first += most) {
      const std::int64_t count = std::min(most, table.place.shape.elements() - first);
      one.resize(static_cast<std::size_t>(count));
      other.resize(static_cast<std::size_t>(count));
      fetch(head, first, count, one.data(), DType::f32);
      fetch(*table.source, first, count, other.data(), DType::f32);
      differs = std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) != 0;
    }
    if (differs)
      throw Error(Exit::file, fmt::format("{}: {} differs from {}, to which {} ties it by tie_word_embeddings: false "
                                          "there, in a copy of the folder, takes the head as it is; without the head's "
                                          "tensor the embedding is the head",
                                          folder_.string(), head.tensor.name, table.place.name, hf_config_file));
  }

  static constexpr std::int64_t shown = 8;  ///< complaints of a kind: a wrong configuration makes thousands

  void complain(const std::string& kind, const std::string& what, Problems& problems) {
    if (++complaints_[kind] <= shown)
      problems.add(Exit::file, fmt::format("{}: {}: {}", folder_.string(), kind, what));
  }

  void place(StateTensor& tensor, std::set<std::string>& used, Problems& problems) {
    std::vector<ReadPiece>& pieces = pieces_.emplace_back();
    bool narrow = true;
    const auto find = [&](const std::string& name) -> std::optional<LocatedTensor> {
      const ShardTensor* const found = shards_.find(name);
      return found ? std::optional(LocatedTensor{&shards_.file(found->file), found->tensor}) : std::nullopt;
    };
    for (ForeignPiece& piece : pieces_in(foreign_.family, facts_.model, tensor)) {
      std::vector<std::string> why;
      if (auto codes = CodedWeight::find(piece.name, piece.shape, find, why)) {
        if (piece.orientation == Orientation::transposed)
          why.push_back(piece.name + ": its family stores it transposed, and codes of such a matrix are not read");
        for (const std::string& one : why) complain("codes", one, problems);
        used.insert(codes->names().begin(), codes->names().end());
        narrow = false;
        ++coded_;
        pieces.push_back({std::move(piece), nullptr, std::move(codes)});
        continue;
      }
      const ShardTensor* const source = shards_.find(piece.name);
      if (!source) {
        complain("missing", piece.name, problems);
        continue;
      }
      const SourceTensor& found = source->tensor;
      used.insert(found.name);
      if (!found.unreadable.empty())
        complain("type", fmt::format("{} is {}; fp32, fp16 and bf16 are read", found.name, found.unreadable), problems);
      else if (found.type != DType::f32 && found.type != DType::bf16)
        complain("type", fmt::format("{} is {}; fp32, fp16 and bf16 are read", found.name, name_of(found.type)),
                 problems);
      else if (found.shape != piece.shape)
        complain("shape", fmt::format("{} is {}, and its configuration says {}", found.name, found.shape.text(),
                                      piece.shape.text()), problems);
      narrow = narrow && found.type == DType::bf16;
      wide_ = wide_ || (found.type != DType::bf16 && !is_counted(tensor.role));
      pieces.push_back({std::move(piece), source, std::nullopt});
    }
    tensor.type = narrow && !is_counted(tensor.role) ? DType::bf16 : DType::f32;
  }

  /// Reads consecutive elements of a tensor as its file holds them, from element `first` on.
  void fetch(const ShardTensor& source, std::int64_t first, std::int64_t count, void* to, DType type) {
    const PosixFile& file = shards_.file(source.file);
    if (source.tensor.type == type) return read_elements(file, source.tensor, first, count, to);
    narrow_.resize(static_cast<std::size_t>(count));
    read_elements(file, source.tensor, first, count, narrow_.data());
    convert_elements(to, type, narrow_.data(), source.tensor.type, count);
  }

  void load(const ReadPiece& piece, std::int64_t first, std::int64_t count, void* to, DType type) {
    if (piece.codes) return piece.codes->read(first, count, static_cast<float*>(to));  // fp32, being not narrow
    if (piece.place.orientation == Orientation::as_is) return fetch(*piece.source, first, count, to, type);
    const std::int64_t width = piece.place.shape[0], height = piece.place.shape[1];
    each_rectangle(first, count, width, [&](auto row, auto rows, auto column, auto columns) {
      lines_.resize(static_cast<std::size_t>(strip * rows * size_of(type)));
      for (std::int64_t c = 0; c < columns; c += strip) {
        const std::int64_t some = std::min(strip, columns - c);
        for (std::int64_t i = 0; i < some; ++i)
          fetch(*piece.source, (column + c + i) * height + row, rows, at(lines_.data(), i * rows, type), type);
        transpose(type, at(to, row * width + column + c - first, type), width, lines_.data(), rows, rows, some);
      }
    });
  }

  fs::path folder_;
  ForeignModel foreign_;
  Shards shards_;
  ModelFacts facts_;
  std::vector<std::vector<ReadPiece>> pieces_;  ///< by canonical tensor
  std::map<std::string, std::int64_t> complaints_{};  ///< by kind
  std::int64_t coded_ = 0;  ///< weights that the folder holds as codes
  bool wide_ = false;       ///< whether a weight is in fp32
  std::vector<std::uint16_t> narrow_;
  std::vector<std::byte> lines_;
};

class HfWriter final : public ModelWriter {
 public:
  HfWriter(const fs::path& path, const ModelFacts& facts, std::int64_t shard_bytes,
           const std::optional<CodesOptions>& codes)
      : family_(family_of(facts.model, facts.origin.parent)),
        model_(facts.model),
        type_(compute_of(facts.tensors) == Compute::bf16 ? DType::bf16 : DType::f32),
        companions_(facts.origin.companions, facts.origin.parent, model_.seq_len),
        folder_(path) {
    if (codes) codes_.emplace(*codes, family_, model_, facts.tensors, folder_.path() / codes_file);
    std::vector<std::vector<SourceTensor>> shards(1);
    std::int64_t filled = 0;
    const auto place = [&](SourceTensor tensor) {
      const std::int64_t bytes = tensor.shape.elements() * size_of(tensor.type);
      if (filled > 0 && filled + bytes > shard_bytes) {
        shards.emplace_back();
        filled = 0;
      }
      filled += bytes;
      total_ += bytes;
      shards.back().push_back(std::move(tensor));
    };
    for (const StateTensor& tensor : facts.tensors) {
      types_.push_back(tensor.type);
      std::vector<WrittenPiece>& pieces = pieces_.emplace_back();
      for (ForeignPiece& piece : pieces_in(family_, model_, tensor)) {
        if (codes_ && codes_->holds(tensor)) {
          for (const CodedArray& array : codes_->arrays_of(tensor, piece)) {
            place(array.tensor);
            coded_.push_back({array, shards.size() - 1, shards.back().size() - 1});
          }
          continue;
        }
        if (piece.shape.rank() == 2) plain_.push_back(piece.name.substr(0, piece.name.rfind(".weight")));
        place({piece.name, piece.shape, tensor.type, 0, ""});
        pieces.push_back({std::move(piece), shards.size() - 1, shards.back().size() - 1});
      }
    }
    const std::size_t last = shards.back().size();
    for (const ZeroTensor& zero : zeros_in(family_, model_)) {
      shards.back().push_back({zero.name, zero.shape, zero.shape.elements() > 0 ? DType::f32 : type_, 0, ""});
      zeros_.push_back(zero.name);
    }
    shards_.reserve(shards.size());
    for (std::size_t i = 0; i < shards.size(); ++i) {
      names_.push_back(shards.size() == 1 ? hf_single_file
                                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
      shards_.emplace_back(folder_.path() / names_.back(), std::move(shards[i]), metadata_of(facts));
    }
    for (const CodedTensor& one : coded_) codes_->copy(one.array, shards_[one.shard], one.index);
    for (std::size_t i = last; i < shards_.back().tensors().size(); ++i) {
      const std::vector<float> zeros(static_cast<std::size_t>(shards_.back().tensors()[i].shape.elements()));
      shards_.back().write(i, 0, zeros.data(), std::ssize(zeros) * std::int64_t{sizeof(float)});
    }
  }

  void write(std::size_t index, std::int64_t first, std::int64_t count, const void* from) override {
    const DType type = types_[index];
    for (const WrittenPiece& piece : pieces_[index]) {
      const std::int64_t begin = std::max(first, piece.place.first), stop = std::min(first + count, piece.place.end());
      if (begin < stop) store(piece, begin - piece.place.first, stop - begin, at(from, begin - first, type), type);
    }
  }

  std::optional<std::string> commit() override {
    for (SafetensorsWriter& shard : shards_) shard.finish();
    Json index = {{"metadata", {{"total_size", total_}}}, {"weight_map", Json::object()}};
    for (const std::vector<WrittenPiece>& pieces : pieces_)
      for (const WrittenPiece& piece : pieces) index["weight_map"][piece.place.name] = names_[piece.shard];
    for (const CodedTensor& one : coded_) index["weight_map"][one.array.tensor.name] = names_[one.shard];
    for (const std::string& zero : zeros_) index["weight_map"][zero] = names_.back();
    replace_text_file(folder_.path() / hf_index_file, index.dump(2) + "\n");
    Json config = Json::parse(hf_config_text(family_, model_, type_, companions_.token_ids()));
    if (codes_) {
      config["quantization_config"] = codes_->config(plain_);
      if (const std::string text = codes_->modelopt_text(plain_); !text.empty())
        replace_text_file(folder_.path() / "hf_quant_config.json", text);
      codes_.reset();
      fs::remove(folder_.path() / codes_file);
    }
    replace_text_file(folder_.path() / hf_config_file, config.dump(2) + "\n");
    companions_.write(folder_.path());
    folder_.commit();
    return std::nullopt;
  }

 private:
  struct WrittenPiece {
    ForeignPiece place;
    std::size_t shard, index;
  };
  struct CodedTensor {
    CodedArray array;
    std::size_t shard, index;
  };
  static constexpr const char* codes_file = "codes.h5";  ///< while the folder is filled

  /// What each file says of its origin, where weights are codes.
  std::map<std::string, std::string> metadata_of(const ModelFacts& facts) const {
    if (!codes_) return {};
    return {{"content_digest", facts.origin.parent_digest},
            {"step", std::to_string(facts.counters.step)},
            {"recipe", codes_->formats_text()}};
  }

  void store(const WrittenPiece& piece, std::int64_t first, std::int64_t count, const void* from, DType type) {
    SafetensorsWriter& file = shards_[piece.shard];
    const std::int64_t size = size_of(type);
    if (piece.place.orientation == Orientation::as_is) return file.write(piece.index, first * size, from, count * size);
    const std::int64_t width = piece.place.shape[0], height = piece.place.shape[1];
    each_rectangle(first, count, width, [&](auto row, auto rows, auto column, auto columns) {
      lines_.resize(static_cast<std::size_t>(strip * rows * size));
      for (std::int64_t c = 0; c < columns; c += strip) {
        const std::int64_t some = std::min(strip, columns - c);
        transpose(type, lines_.data(), rows, at(from, row * width + column + c - first, type), width, some, rows);
        for (std::int64_t i = 0; i < some; ++i)
          file.write(piece.index, ((column + c + i) * height + row) * size, at(lines_.data(), i * rows, type),
                     rows * size);
      }
    });
  }

  Family family_;
  ModelConfig model_;
  DType type_;  ///< of the whole, as the configuration says it
  HfCompanions companions_;
  NewFolder folder_;
  std::optional<HfCodes> codes_;
  std::vector<CodedTensor> coded_;
  std::vector<std::string> plain_;  ///< modules whose matrices are no codes
  std::vector<DType> types_;
  std::vector<std::vector<WrittenPiece>> pieces_;  ///< by canonical tensor; none of those that are codes
  std::vector<SafetensorsWriter> shards_;
  std::vector<std::string> names_, zeros_;  ///< of files, and of tensors in the last one
  std::int64_t total_ = 0;
  std::vector<std::byte> lines_;
};

}  // namespace

bool is_hf_folder(const fs::path& path) {
  return entry_at(path / hf_config_file) != Entry::none && entry_at(path / manifest_file) == Entry::none;
}

fs::path find_weights(const fs::path& path) {
  if (is_hf_folder(path)) return path;
  const auto absent = [](const fs::path& one) { return entry_at(one) == Entry::none; };
  const bool named = path.is_relative() && !path.string().starts_with('.') &&
                     std::distance(path.begin(), path.end()) <= 2;  // NAME or OWNER/NAME
  if (named && absent(path) && (!path.has_parent_path() || absent(path.parent_path())))
    throw Error(Exit::file, fmt::format("{}. A model of Hugging Face's hub is not fetched: download it, as by `hf "
                                        "download {} --local-dir DIR`, and name that folder",
                                        no_checkpoint(path).what(), path.string()));
  return find_checkpoint(path);
}

Compute compute_of(const std::vector<StateTensor>& weights) {
  const auto narrow = [](const StateTensor& t) { return t.type == DType::bf16 || is_counted(t.role); };
  return std::ranges::all_of(weights, narrow) ? Compute::bf16 : Compute::fp32;
}

std::unique_ptr<ModelReader> read_hf_folder(const fs::path& path) { return std::make_unique<HfReader>(path); }

std::unique_ptr<ModelWriter> write_hf_folder(const fs::path& path, const ModelFacts& facts, std::int64_t shard_bytes,
                                             const std::optional<CodesOptions>& codes) {
  return std::make_unique<HfWriter>(path, facts, shard_bytes, codes);
}

}  // namespace tessera
