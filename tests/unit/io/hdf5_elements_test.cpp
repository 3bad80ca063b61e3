// Ranges of elements of datasets, through HDF5's hyperslabs.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "io/files/posix_file.hpp"
#include "io/hdf5/file.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

using hdf5::ElementRange;
using enum hdf5::Parallel::Transfer;

/// Ascending, some of them empty, with gaps.
std::vector<ElementRange> ranges_of(std::int64_t elements, std::minstd_rand& chance) {
  std::vector<ElementRange> ranges;
  for (std::int64_t at = 0; at < elements && ranges.size() < 5;) {
    const auto left = static_cast<std::uint64_t>(elements - at);
    const auto count = static_cast<std::int64_t>(chance() % (left + 1));
    ranges.push_back({at, count});
    at += count + static_cast<std::int64_t>(chance() % 3);
  }
  return ranges;
}

std::int64_t count_of(const std::vector<ElementRange>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t sum, const ElementRange& range) { return sum + range.count; });
}

TEST(Elements, AreWrittenAndReadWhereTheirNumbersSay) {
  const Shape shapes[] = {{1}, {17}, {5, 7}, {1, 9}, {6, 1}, {3, 4, 5}, {2, 1, 6}, {4, 3, 1}};
  std::minstd_rand chance(3);
  for (const Shape& shape : shapes)
    for (int turn = 0; turn < 40; ++turn) {
      const test::TemporaryFolder folder;
      const auto path = folder.path() / "a.h5";
      hdf5::File file = hdf5::File::create(path);
      file.add_groups("/g");
      const hdf5::Dataset data = file.add_dataset("/g/x", shape, DType::f32);
      const auto n = static_cast<std::size_t>(shape.elements());
      std::vector<float> expected(n, -1.0f), written(n), found(n);
      file.transfer(write, "/g/x", {0, shape.elements()}, expected.data());
      const std::vector<ElementRange> ranges = ranges_of(shape.elements(), chance);
      const std::int64_t count = count_of(ranges);
      std::iota(written.begin(), written.end(), 1.0f);
      std::vector<float> back(n, 0.0f);
      std::int64_t at = 0;
      for (const ElementRange& range : ranges) {
        file.transfer(write, "/g/x", range, written.data() + at);
        std::copy_n(written.begin() + at, range.count, expected.begin() + range.first);
        file.transfer(read, "/g/x", range, back.data() + at);
        at += range.count;
      }
      EXPECT_TRUE(std::equal(back.begin(), back.begin() + count, written.begin())) << shape.text() << ", " << turn;
      file.close();
      PosixFile(path, PosixFile::Mode::read).read(data.offset, found.data(), shape.elements() * 4);
      EXPECT_EQ(found, expected) << shape.text() << ", " << turn;
    }
}

TEST(Elements, NoneAreWrittenByNoRange) {
  const test::TemporaryFolder folder;
  hdf5::File file = hdf5::File::create(folder.path() / "a.h5");
  file.add_dataset("/x", {2, 3}, DType::f32);
  std::vector<float> values(6, 5.0f);
  file.transfer(write, "/x", {0, 6}, values.data());
  file.transfer(write, "/x", {0, 0}, nullptr);
  std::vector<float> back(6);
  file.transfer(read, "/x", {0, 6}, back.data());
  EXPECT_EQ(back, values);
  EXPECT_THROW(file.transfer(write, "/y", {0, 0}, nullptr), Error);
}

TEST(Elements, TwoFilesOfTheSameCallsAreTheSameBytes) {
  const test::TemporaryFolder folder;
  std::string bytes[2];
  for (int i = 0; i < 2; ++i) {
    const auto path = folder.path() / std::to_string(i);
    hdf5::File file = hdf5::File::create(path);
    file.add_groups("/g/h");
    file.add_dataset("/g/h/x", {4}, DType::f32);
    file.set("/", "text", "same");
    float values[4] = {1, 2, 3, 4};
    file.transfer(write, "/g/h/x", {0, 4}, values);
    file.close();
    const PosixFile made(path, PosixFile::Mode::read);
    bytes[i].resize(static_cast<std::size_t>(made.size()));
    made.read(0, bytes[i].data(), made.size());
    const timespec second{1, 100'000'000};
    if (i == 0) ::nanosleep(&second, nullptr);
  }
  EXPECT_EQ(bytes[0], bytes[1]) << "times are in the file";
}

}  // namespace
}  // namespace tessera
