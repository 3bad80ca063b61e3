// The table of all tensors in a checkpoint's file, against the attributes of its datasets.
#include <gtest/gtest.h>

#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/stored_tensor.hpp"
#include "io/files/text_file.hpp"
#include "kernels/digest/digest.hpp"
#include "tests/support/saved_state.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* names[] = {model_file, optimizer_file};

class CheckpointIndex : public ::testing::TestWithParam<ExpertWeights> {
 protected:
  CheckpointIndex() {
    for (const char* slot : {"model", "adamw/m"}) {  // only the model's file says what a tensor is tied to
      saved_.add(slot, "token_embedding.weight", {40, 16}, Role::embedding,
                 "head.weight.of.a.name.that.is.longer.than.any.path");
      saved_.add(slot, "norm.weight", {16}, Role::norm);
      saved_.add(slot, "moe.experts.up.weight", {4, 24, 16}, Role::expert);
    }
    saved_.save(GetParam());
  }

  fs::path folder() const { return saved_.folder(); }
  fs::path file(const char* name) const { return folder() / name; }
  PosixFile payload(const char* name) const { return {file(name), PosixFile::Mode::read}; }
  std::vector<StoredTensor> by_datasets(const char* name) const {
    return tensors_of(hdf5::File::open(file(name)), payload(name));
  }
  /// The tensors by the index, as long as the structure's digest is `saved`.
  std::vector<StoredTensor> vouched_for(const char* name, std::uint64_t saved) const {
    return tensors_of(hdf5::File::open(file(name)), payload(name), hex(saved));
  }
  /// The same with the digest of the present structure.
  std::vector<StoredTensor> indexed(const char* name) const {
    return vouched_for(name, digest(name, by_datasets(name)));
  }
  std::uint64_t digest(const char* name, const std::vector<StoredTensor>& tensors) const {
    return structure_digest(payload(name), tensors);
  }
  void flip(const char* name, std::int64_t at, int bit) const {
    char byte = 0;
    PosixFile(file(name), PosixFile::Mode::read).read(at, &byte, 1);
    byte = static_cast<char>(byte ^ (1 << bit));
    PosixFile(file(name), PosixFile::Mode::write).write(at, &byte, 1);
  }
  /// Offset of the table of weights: that of its first row, the only place where a whole path is written.
  std::int64_t table() const {
    const std::size_t found = test::read_file(file(model_file)).find("/model/token_embedding.weight");
    if (found == std::string::npos) throw std::runtime_error("a file without a table");
    return static_cast<std::int64_t>(found);
  }
  /// Changes the first letter of the first tensor's axes in the table, v to w.
  void rename_axes() const {
    const std::size_t from = static_cast<std::size_t>(table());
    flip(model_file, static_cast<std::int64_t>(test::read_file(file(model_file)).find("vocabulary", from)), 0);
  }
  /// Rewrites the manifest with a change.
  template <class Change>
  void seal(const Change& change) const {
    Manifest manifest = parse_manifest(read_text_file(file(manifest_file)), file(manifest_file));
    change(manifest);
    replace_text_file(file(manifest_file), to_json(manifest));
  }

 private:
  test::SavedState saved_;
};

TEST_P(CheckpointIndex, SaysWhatDatasetsAre) {
  for (const char* name : names) {
    SCOPED_TRACE(test::shown(name));
    const std::vector<StoredTensor> tensors = indexed(name);
    EXPECT_EQ(tensors, by_datasets(name));
    ASSERT_EQ(tensors.size(), 3u);
    EXPECT_EQ(tensors[0].tied_to.empty(), name != model_file);
    EXPECT_EQ(tensors[0].shape, (Shape{40, 16}));
    EXPECT_EQ(tensors[1].shape, Shape{16});
    EXPECT_EQ(tensors[2].shape, (Shape{4, 24, 16}));
    EXPECT_EQ(tensors[2].datasets.size(), GetParam() == ExpertWeights::discrete ? 4u : 1u);
  }
  EXPECT_TRUE(Checkpoint(folder()).verify().empty());
}

/// Datasets' attributes are not read if the manifest's digest covers the structure; verify reads them all the same.
TEST_P(CheckpointIndex, IsTakenWhereTheManifestVouchesForIt) {
  rename_axes();
  seal([&](Manifest& manifest) { manifest.structures[model_file] = hex(digest(model_file, indexed(model_file))); });
  const Checkpoint checkpoint(folder());
  EXPECT_EQ(checkpoint.tensors()[0].axes, "wocabulary,hidden");
  const std::vector<std::string> wrong = checkpoint.verify();
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong[0], file(model_file).string() + ": its datasets are not what its table says");
}

TEST_P(CheckpointIndex, IsNotTakenWhereAnythingChanged) {
  const std::vector<StoredTensor> sound = Checkpoint(folder()).tensors();
  rename_axes();
  const Checkpoint checkpoint(folder());
  EXPECT_EQ(checkpoint.tensors(), sound);
  const std::vector<std::string> wrong = checkpoint.verify();
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong[0], file(model_file).string() + ": holds other structure than was saved");
}

/// A manifest without digests of structure, as of format 1.1: the table is not used.
TEST_P(CheckpointIndex, IsNoneInAManifestWithoutDigestsOfStructure) {
  const std::vector<StoredTensor> sound = Checkpoint(folder()).tensors();
  rename_axes();
  seal([](Manifest& manifest) {
    manifest.format = {1, 1};
    manifest.structures.clear();
  });
  EXPECT_NE(why_invalid(folder()).find("another format version than the manifest"), std::string::npos);
  seal([](Manifest& manifest) { manifest.format = {}; });
  EXPECT_EQ(Checkpoint(folder()).tensors(), sound);
}

TEST_P(CheckpointIndex, DigestCoversAllButPayload) {
  for (const char* name : names) {
    const std::vector<StoredTensor> tensors = indexed(name);
    const auto is_payload = [&](std::int64_t at) {
      for (const StoredTensor& tensor : tensors)
        for (const StoredTensor::Dataset& dataset : tensor.datasets)
          if (at >= dataset.offset && at < dataset.offset + dataset.count * size_of(tensor.type)) return true;
      return false;
    };
    const std::uint64_t whole = digest(name, tensors);
    const auto bytes = static_cast<std::uint64_t>(fs::file_size(file(name)));
    int outside = 0;
    for (std::uint64_t i = 0; i < 300; ++i) {
      const auto at = static_cast<std::int64_t>(random_bits({3, 1}, i) % bytes);
      flip(name, at, static_cast<int>(i % 8));
      EXPECT_EQ(digest(name, tensors) == whole, is_payload(at)) << name << " at " << at;
      flip(name, at, static_cast<int>(i % 8));
      outside += !is_payload(at);
    }
    EXPECT_GT(outside, 30);
    EXPECT_LT(outside, 270);
    EXPECT_EQ(digest(name, tensors), whole);
  }
}

/// A damaged row is refused, or every dataset is opened in place of the index; what lies where is never wrong.
TEST_P(CheckpointIndex, OfDamagedRowsIsRefusedOrNotTaken) {
  const std::vector<StoredTensor> sound = indexed(model_file);
  const std::uint64_t whole = digest(model_file, sound);
  const std::int64_t begin = table();
  const std::int64_t end = sound[0].datasets[0].offset;  // the table lies before all payload
  ASSERT_GT(end, begin + 600);
  int refused = 0, other = 0;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const std::int64_t at =
        begin + static_cast<std::int64_t>(random_bits({3, 2}, i) % static_cast<std::uint64_t>(end - begin));
    const int bit = static_cast<int>(random_bits({3, 3}, i) % 8);
    flip(model_file, at, bit);
    try {
      const std::vector<StoredTensor> tensors = vouched_for(model_file, whole);
      ASSERT_EQ(tensors.size(), sound.size());
      for (std::size_t which = 0; which < tensors.size(); ++which)
        EXPECT_EQ(tensors[which].datasets, sound[which].datasets) << at << ", bit " << bit;
      EXPECT_EQ(tensors, by_datasets(model_file)) << at << ", bit " << bit;
      EXPECT_NE(digest(model_file, tensors), whole) << at << ", bit " << bit;
      ++other;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::file) << error.what();
      ++refused;
    }
    flip(model_file, at, bit);
  }
  EXPECT_GT(refused, 40);
  EXPECT_GT(other, 40);
  EXPECT_EQ(indexed(model_file), sound);
}

INSTANTIATE_TEST_SUITE_P(Layouts, CheckpointIndex, ::testing::Values(ExpertWeights::single, ExpertWeights::discrete),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace tessera
