#include "io/files/posix_file.hpp"
#include "io/metrics/metrics_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "io/files/text_file.hpp"

namespace tessera {
namespace {

/// The shortest decimal that reads back to the same number; the JSON library's is not always the shortest.
template <class T, class... Format>
std::string number(T value, Format... format) {
  if (!std::isfinite(value)) return "null";
  char text[400];  // room for 1e308 with three decimals
  return {text, std::to_chars(text, text + sizeof text, value, format...).ptr};
}
std::string measured(double value) { return number(value, std::chars_format::fixed, 3); }

Error unusable(const std::filesystem::path& path, int cause) {
  return {Exit::environment,
          fmt::format("{}: cannot be opened for writing: {}; make room or permit it, or name another "
                      "checkpoint.dir",
                      path.string(), std::strerror(cause))};
}

// Reads the whole file; returns 0 or an errno.
int read_all(int file, std::string& text) {
  char block[1 << 16];
  for (off_t at = 0;;) {
    const ssize_t n = ::pread(file, block, sizeof block, at);
    if (n == 0) return 0;
    if (n < 0 && errno != EINTR) return errno;
    if (n < 0) continue;
    text.append(block, static_cast<std::size_t>(n));
    at += n;
  }
}

// Step and restart of one line; place_of() returns nothing if the line is not a row.
struct Place {
  std::int64_t step, restart;
};
std::optional<Place> place_of(std::string_view line) {
  const auto row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) return std::nullopt;
  const auto restart = row.find("restart");
  return Place{row["step"].get<std::int64_t>(),
               restart != row.end() && restart->is_number_integer() ? restart->get<std::int64_t>() : 0};
}

}  // namespace

std::string to_json(const MetricsRow& row) {
  const std::string blocked =
      row.save_blocked_ms ? fmt::format("\"save_blocked_ms\":{},", measured(*row.save_blocked_ms)) : "";
  const std::string evaluation = row.eval_loss ? fmt::format("\"eval_loss\":{},", number(*row.eval_loss)) : "";
  const std::string targets = row.targets ? fmt::format("\"targets\":{},", *row.targets) : "";
  const std::string experts = row.expert_rows ? fmt::format("\"expert_rows\":{},", measured(*row.expert_rows)) : "";
  return fmt::format(
      "{{\"step\":{},\"loss\":{},{}\"balance_loss\":{},\"z_loss\":{},\"expert_load\":{},\"grad_norm\":{},"
      "\"clip_coef\":{},\"lr\":{},\"tokens\":{},{}\"step_ms\":{},{}\"tokens_per_s\":{},\"mfu\":{},\"memory_bytes\":{},"
      "\"ranks\":{},\"time\":{},{}"
      "\"skipped\":{},\"spike\":{},\"restart\":{}}}",
      row.step, number(row.loss), evaluation, number(row.balance_loss), number(row.z_loss), number(row.expert_load),
      number(row.grad_norm), number(row.clip_coef), number(row.lr), row.tokens, targets, measured(row.step_ms), blocked,
      measured(row.tokens_per_s), row.mfu ? number(*row.mfu, std::chars_format::fixed, 5) : "null", row.memory_bytes,
      row.ranks, measured(row.time), experts, row.skipped, row.spike, row.restart);
}

std::vector<MetricsRow> read_metrics(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(Exit::environment, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  std::vector<MetricsRow> rows;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const auto value = [&](const char* key) { return json.contains(key) ? json[key] : nlohmann::json(); };
    if (!json.is_object() || !value("step").is_number_integer()) continue;
    const auto real = [&](const char* key) { return value(key).is_number() ? value(key).get<double>() : std::nan(""); };
    const auto single = [&](const char* key) { return static_cast<float>(real(key)); };
    const auto integer = [&](const char* key) {
      return value(key).is_number_integer() ? value(key).get<std::int64_t>() : 0;
    };
    MetricsRow& row = rows.emplace_back();
    row.step = integer("step");
    row.loss = single("loss");
    if (json.contains("eval_loss")) row.eval_loss = single("eval_loss");
    row.balance_loss = single("balance_loss");
    row.z_loss = single("z_loss");
    row.expert_load = single("expert_load");
    row.grad_norm = single("grad_norm");
    row.clip_coef = single("clip_coef");
    row.lr = single("lr");
    row.tokens = integer("tokens");
    if (json.contains("targets")) row.targets = integer("targets");
    row.step_ms = real("step_ms");
    if (json.contains("save_blocked_ms")) row.save_blocked_ms = real("save_blocked_ms");
    row.tokens_per_s = real("tokens_per_s");
    if (value("mfu").is_number()) row.mfu = real("mfu");
    row.memory_bytes = integer("memory_bytes");
    row.ranks = integer("ranks");
    row.time = value("time").is_number() ? real("time") : 0;
    row.spike = value("spike") == true;
    if (json.contains("expert_rows")) row.expert_rows = real("expert_rows");
    row.skipped = value("skipped") == true;
    row.restart = integer("restart");
  }
  return rows;
}

MetricsLog::MetricsLog(const std::filesystem::path& path, std::int64_t step) : path_(path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) throw unusable(path, errno);
  struct ::stat about {};
  int cause = ::fstat(file_, &about) != 0 ? errno : S_ISREG(about.st_mode) ? 0 : EINVAL;
  std::string text;
  if (cause == 0) cause = read_all(file_, text);

  std::int64_t newest = -1;  // restart number of the newest row, even if that is dropped
  std::size_t kept = text.rfind('\n') + 1;
  while (kept > 0) {
    const std::size_t begin = kept < 2 ? 0 : text.rfind('\n', kept - 2) + 1;
    const auto place = place_of(std::string_view(text).substr(begin, kept - 1 - begin));
    if (place) newest = std::max(newest, place->restart);
    if (place) reached_ = std::max(reached_, place->step);
    if (place && place->step <= step) break;
    kept = begin;
  }
  bytes_ = static_cast<std::int64_t>(kept);
  last_ = kept < 2 ? 0 : static_cast<std::int64_t>(text.rfind('\n', kept - 2) + 1);
  restarts_ = newest >= 0 ? newest + 1 : step > 0 ? 1 : 0;
  if (cause == 0 && kept < text.size() && ::ftruncate(file_, bytes_) != 0) cause = errno;
  if (cause != 0) {
    ::close(file_);
    throw unusable(path, cause);
  }
}

MetricsLog::~MetricsLog() { ::close(file_); }

void MetricsLog::replace_last(const MetricsRow& row) {
  const std::string before = read_text_file(path_).substr(0, static_cast<std::size_t>(last_));
  replace_text_file(path_, before + to_json(row) + '\n');
  const int file = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  if (file < 0) throw unusable(path_, errno);
  ::close(std::exchange(file_, file));
  bytes_ = last_ + std::ssize(to_json(row)) + 1;
}

Problems MetricsLog::append(const MetricsRow& row) {
  const std::string line = to_json(row) + '\n';
  Problems problems;
  const int cause = write_all(file_, line);
  if (cause == 0) {
    last_ = std::exchange(bytes_, bytes_ + std::ssize(line));
    return problems;
  }
  std::string rest = "it keeps its earlier rows";
  if (::ftruncate(file_, bytes_) != 0) rest = "its last line is unfinished";
  problems.add(Exit::environment,
               fmt::format("{}: the row of step {} cannot be written: {}; {}; make room, then give the "
                           "same command again",
                           path_.string(), row.step, std::strerror(cause), rest));
  return problems;
}

}  // namespace tessera
