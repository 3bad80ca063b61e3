#include "io/files/posix_file.hpp"
#include "io/metrics/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <span>
#include <utility>

#include "io/files/crc.hpp"

namespace tessera {
namespace {

// Protocol Buffers: a field is its number and wire type, then the value. Numbers of tensorflow/core/util/event.proto
// and framework/summary.proto.
namespace event_field {
constexpr int wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace session_field {
constexpr int status = 1;
constexpr std::uint64_t start = 1;
}  // namespace session_field
constexpr int summary_value = 1;
namespace value_field {
constexpr int tag = 1, simple_value = 2;
}

/// Appends a number's bytes in little-endian order.
template <class T>
void put_fixed(std::string& out, T bits) {
  for (std::size_t i = 0; i < sizeof bits; ++i) out += static_cast<char>(bits >> (8 * i) & 0xFF);
}
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
enum Wire : std::uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
void put_key(std::string& out, int field, Wire wire) { put_varint(out, static_cast<std::uint64_t>(field) << 3 | wire); }

void put(std::string& out, int field, std::uint64_t value) {
  put_key(out, field, varint);
  put_varint(out, value);
}
void put(std::string& out, int field, double value) {
  put_key(out, field, fixed64);
  put_fixed(out, std::bit_cast<std::uint64_t>(value));
}
void put(std::string& out, int field, float value) {
  put_key(out, field, fixed32);
  put_fixed(out, std::bit_cast<std::uint32_t>(value));
}
void put(std::string& out, int field, std::string_view value) {
  put_key(out, field, bytes);
  put_varint(out, value.size());
  out += value;
}

std::string event_at(std::int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put(event, event_field::wall_time, now.count());
  put(event, event_field::step, static_cast<std::uint64_t>(step));
  return event;
}

void put_scalar(std::string& summary, std::string_view tag, float number) {
  if (!std::isfinite(number)) return;
  std::string value;
  put(value, value_field::tag, tag);
  put(value, value_field::simple_value, number);
  put(summary, summary_value, value);
}

/// TFRecord's masked CRC, since a CRC of data that contain CRCs would be weak.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  return crc32_by<0x82F63B78u>(std::as_bytes(std::span(bytes)));
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t step, std::int64_t restart)
    : path_(folder / fmt::format("events.out.tfevents.{:010}.{:04}", std::time(nullptr), restart)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  std::string version = event_at(0), start = event_at(step + 1), status;
  put(version, event_field::file_version, std::string_view("brain.Event:2"));
  put(status, session_field::status, session_field::start);
  put(start, event_field::session_log, std::string_view(status));
  if (file_ < 0)
    fmt::print(stderr, "{}: cannot be written: {} (training goes on)\n", path_.string(), std::strerror(errno));
  write(version);
  write(start);
}

EventFile::~EventFile() {
  if (file_ >= 0) ::close(file_);
}

void EventFile::append(const MetricsRow& row) {
  std::string summary;
  const auto columns = nlohmann::json::parse(to_json(row));
  for (const auto& [name, value] : columns.items()) {
    if (name == "step" || name == "time") continue;  // an event has its own
    if (value.is_number()) put_scalar(summary, name, value.get<float>());
    if (value.is_boolean()) put_scalar(summary, name, value.get<bool>() ? 1 : 0);
  }
  std::string event = event_at(row.step);
  put(event, event_field::summary, std::string_view(summary));
  write(event);
}

void EventFile::append(std::int64_t step, const std::vector<QuantizerLine>& lines) {
  std::vector<QuantizerFigures> figures;
  for (const QuantizerLine& line : lines) figures.push_back(figures_of(step, line));
  std::string summary;
  for (const char* role : quantizer_roles)
    for (const QuantizerField& field : {quantizer_fields[0], quantizer_fields[1]})
      if (const RoleFigures of_role = figures_of_role(figures, step, role, field.field); !of_role.matrix.empty())
        put_scalar(summary, fmt::format("quantizer/{}/{}", role, field.key), static_cast<float>(of_role.median));
  if (summary.empty()) return;
  std::string event = event_at(step);
  put(event, event_field::summary, std::string_view(summary));
  write(event);
}

/// Writes a TFRecord: length, its CRC, the bytes, their CRC. One system call, so that a reader sees whole records.
void EventFile::write(std::string_view event) {
  if (file_ < 0) return;
  std::string record;
  put_fixed(record, std::uint64_t{event.size()});
  put_fixed(record, masked(crc32c(record)));
  record += event;
  put_fixed(record, masked(crc32c(event)));
  const int cause = write_all(file_, record);
  if (cause == 0) return;
  fmt::print(stderr, "{}: cannot be written any further: {} (training goes on)\n", path_.string(),
             std::strerror(cause));
  ::close(std::exchange(file_, -1));
}

}  // namespace tessera
