#include "io/metrics/event_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {
using test::TemporaryFolder;

/// A reader written from the format's description: TFRecords with Protocol Buffers in them.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  bool done() const { return at_ == bytes_.size(); }
  template <class T>
  T fixed() {
    T value{};
    if (bytes_.size() - at_ < sizeof value) throw std::runtime_error("ends within a number");
    for (std::size_t i = 0; i < sizeof value; ++i)
      value |= static_cast<T>(static_cast<unsigned char>(bytes_[at_++])) << (8 * i);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = fixed<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string bytes(std::uint64_t n) {
    if (bytes_.size() - at_ < n) throw std::runtime_error("ends within bytes");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  std::string record() {
    const auto length = fixed<std::uint64_t>();
    std::string head(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(length >> (8 * i));
    EXPECT_EQ(fixed<std::uint32_t>(), masked(head));
    std::string data = bytes(length);
    EXPECT_EQ(fixed<std::uint32_t>(), masked(data));
    return data;
  }

 private:
  /// Reference CRC, bit by bit from the polynomial.
  static std::uint32_t masked(const std::string& data) {
    std::uint32_t crc = ~0u;
    for (const char byte : data)
      for (int bit = 0; bit < 8; ++bit) {
        const bool carry = ((crc ^ static_cast<std::uint32_t>(static_cast<unsigned char>(byte) >> bit)) & 1) != 0;
        crc = crc >> 1 ^ (carry ? 0x82F63B78u : 0u);
      }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

struct Field {
  std::uint64_t number = 0;
  std::string bytes;
};
std::multimap<int, Field> message(const std::string& bytes) {
  std::multimap<int, Field> fields;
  for (Reader reader(bytes); !reader.done();) {
    const std::uint64_t key = reader.varint();
    Field field;
    if (key % 8 == 0)
      field.number = reader.varint();
    else if (key % 8 == 1)
      field.number = reader.fixed<std::uint64_t>();
    else if (key % 8 == 5)
      field.number = reader.fixed<std::uint32_t>();
    else if (key % 8 == 2)
      field.bytes = reader.bytes(reader.varint());
    else
      throw std::runtime_error("no such wire type");
    fields.emplace(static_cast<int>(key / 8), field);
  }
  return fields;
}

std::vector<std::multimap<int, Field>> events_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::multimap<int, Field>> events;
  for (const auto& file : files)
    for (Reader reader(test::read_file(file)); !reader.done();) events.push_back(message(reader.record()));
  return events;
}

std::map<std::string, float> scalars_of(const std::multimap<int, Field>& event) {
  std::map<std::string, float> scalars;
  for (const auto& [number, value] : message(event.find(5)->second.bytes)) {
    EXPECT_EQ(number, 1);
    const auto fields = message(value.bytes);
    scalars[fields.find(1)->second.bytes] =
        std::bit_cast<float>(static_cast<std::uint32_t>(fields.find(2)->second.number));
  }
  return scalars;
}

TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

TEST(EventFile, HoldsTheFiniteNumbersOfEachRow) {
  const TemporaryFolder folder;
  MetricsRow row;
  row.step = 300;  // two bytes as a varint
  row.loss = 3.25f;
  row.eval_loss = 3.5f;
  row.balance_loss = row.z_loss = std::numeric_limits<float>::quiet_NaN();
  row.grad_norm = 1.02f;
  row.lr = 3e-4f;
  row.tokens_per_s = 66361.14;
  row.step_ms = 123.4567;
  row.expert_load = 1.25f;
  row.expert_rows = 1.5;
  row.memory_bytes = 1 << 20;
  row.ranks = 4;
  row.tokens = 4096;
  row.mfu = 0.41;
  row.save_blocked_ms = 7.5;
  row.skipped = true;
  row.restart = 2;
  {
    EventFile file(folder.path(), 299, 2);
    file.append(row);
    row.step = 301;
    row.eval_loss.reset();
    row.loss = std::numeric_limits<float>::infinity();
    file.append(row);
  }
  const auto events = events_in(folder.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].find(3)->second.bytes, "brain.Event:2");
  EXPECT_EQ(message(events[1].find(7)->second.bytes).find(1)->second.number, 1u) << "START";
  EXPECT_EQ(events[1].find(2)->second.number, 300u) << "what came before from step 300 on is forgotten";
  for (const auto& event : events) {
    const auto wall = std::bit_cast<double>(event.find(1)->second.number);
    EXPECT_GT(wall, 1.7e9);
    EXPECT_LT(wall, 1e11);
  }
  EXPECT_EQ(events[2].find(2)->second.number, 300u);
  EXPECT_EQ(scalars_of(events[2]), (std::map<std::string, float>{{"loss", 3.25f},
                                                                 {"eval_loss", 3.5f},
                                                                 {"grad_norm", 1.02f},
                                                                 {"lr", 3e-4f},
                                                                 {"tokens_per_s", 66361.14f},
                                                                 {"step_ms", 123.457f},
                                                                 {"expert_load", 1.25f},
                                                                 {"expert_rows", 1.5f},
                                                                 {"memory_bytes", 1048576},
                                                                 {"ranks", 4},
                                                                 {"tokens", 4096},
                                                                 {"mfu", 0.41f},
                                                                 {"save_blocked_ms", 7.5f},
                                                                 {"clip_coef", 1},
                                                                 {"skipped", 1},
                                                                 {"spike", 0},
                                                                 {"restart", 2}}));
  EXPECT_EQ(events[3].find(2)->second.number, 301u);
  EXPECT_FALSE(scalars_of(events[3]).contains("loss"));
  EXPECT_FALSE(scalars_of(events[3]).contains("eval_loss"));
}

TEST(EventFile, IsReadableWhileItIsWritten) {
  const TemporaryFolder folder;
  EventFile file(folder.path(), 0, 0);
  for (std::int64_t step = 1; step <= 3; ++step) {
    MetricsRow row;
    row.step = step;
    file.append(row);
    EXPECT_EQ(events_in(folder.path()).back().find(2)->second.number, static_cast<std::uint64_t>(step));
  }
}

TEST(EventFile, OfALaterStartComesLater) {
  const TemporaryFolder folder;
  MetricsRow row;
  for (std::int64_t restart = 0; restart < 12; ++restart) {
    EventFile file(folder.path(), restart, restart);
    row.step = restart + 1;
    file.append(row);
  }
  const auto events = events_in(folder.path());
  ASSERT_EQ(events.size(), 36u);
  for (std::size_t i = 0; i < events.size(); ++i)
    EXPECT_EQ(events[i].find(2)->second.number, i % 3 == 0 ? 0 : i / 3 + 1);
}

TEST(EventFile, ThatCannotBeWrittenEndsNothing) {
  const TemporaryFolder folder;
  testing::internal::CaptureStderr();
  {
    EventFile file(folder.path() / "gone", 0, 0);
    file.append({});
    file.append({});
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_NE(said.find("No such file or directory"), std::string::npos);
}

}  // namespace
}  // namespace tessera
