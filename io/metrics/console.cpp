#include "io/metrics/console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

namespace tessera {
namespace {

constexpr std::string_view clear_line = "\r\033[K", yellow = "\033[33m", uncoloured = "\033[0m";

// Up to three digits: "9.9", "10", "512".
std::string short_number(double x) { return x < 9.95 ? fmt::format("{:.1f}", x) : fmt::format("{:.0f}", x); }

/// Fixed decimals; a NaN without its sign, which means nothing.
std::string fixed(float x, int digits) { return std::isnan(x) ? "nan" : fmt::format("{:.{}f}", x, digits); }

std::string norm_text(float norm) {
  const bool plain = norm == 0 || (norm >= 0.01f && norm < 1e4f) || !std::isfinite(norm);
  return plain ? fixed(norm, 2) : fmt::format("{:.2e}", norm);
}

std::string step_time(double ms) { return ms < 9999.5 ? short_number(ms) + " ms" : fmt::format("{:.1f} s", ms / 1000); }

}  // namespace

std::string count_text(double count) {
  if (!(count >= 999.5)) return fmt::format("{:.0f}", count);
  double scaled = count / 1e3;
  for (const char* unit : {"k", "M", "G"}) {
    if (scaled < 999.5) return short_number(scaled) + unit;
    scaled /= 1e3;
  }
  return short_number(scaled) + "T";
}

std::string counted(std::int64_t count, std::string_view unit) {
  std::string digits = std::to_string(count);
  for (std::int64_t at = std::ssize(digits) - 3; at > (count < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  const char* const plural = unit.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", digits, unit, count == 1 ? "" : plural);
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1 << 10) return fmt::format("{} bytes", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1000) return fmt::format("{:.1f} MiB", mib);
  const double gib = mib / 1024;
  return gib < 1000 ? fmt::format("{:.1f} GiB", gib) : fmt::format("{:.1f} TiB", gib / 1024);
}

std::string time_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e11)) return "?";
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t days = s / 86400, hours = s / 3600 % 24, minutes = s / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, s % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, s % 60);
  return fmt::format("{}:{:02}", minutes, s % 60);
}

std::string to_line(const ConsoleRow& row) {
  std::string line = fmt::format("step {}/{} | loss {}", row.step, row.steps, fixed(row.loss, 4));
  std::string sets;
  for (const auto& [name, loss] : row.eval_sets)
    sets += fmt::format("{}{} {}", sets.empty() ? "" : ", ", name, fixed(loss, 4));
  if (row.eval_loss) line += " | eval " + (sets.empty() ? fixed(*row.eval_loss, 4) : sets);
  line += fmt::format(" | norm {} | lr {:.1e} | {}", norm_text(row.norm), row.lr, step_time(row.step_ms));
  if (row.mfu) line += fmt::format(" | {:.{}f}% MFU", *row.mfu * 100, *row.mfu < 0.1 ? 1 : 0);
  line += fmt::format(" | {} tok/s | {} | ETA {}", count_text(row.tokens_per_s), bytes_text(row.memory_bytes),
                      time_text(row.seconds_left));
  return row.skipped ? line + " | skipped" + (row.spike ? ": spike" : "") : line;
}

std::string to_bar(std::int64_t step, std::int64_t steps, double seconds_left) {
  constexpr std::int64_t width = 20;
  const auto done = static_cast<std::size_t>(steps > 0 ? width * step / steps : width);
  return fmt::format("[{:<{}}] {}% | ETA {}", std::string(done, '#'), width, steps > 0 ? 100 * step / steps : 100,
                     time_text(seconds_left));
}

Console::Console(std::FILE* out) : out_(out) {
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  kind_ = !dumb && ::isatty(::fileno(out)) == 1 ? Kind::terminal : Kind::file;
}

void Console::write(std::string_view bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), out_);
  std::fflush(out_);
}

void Console::line(std::string_view text) {
  write(fmt::format("{}{}\n", kind_ == Kind::terminal ? clear_line : "", text));
}

void Console::warning(std::string_view text) {
  if (kind_ == Kind::terminal)
    write(fmt::format("{}{}{}{}\n", clear_line, yellow, text, uncoloured));
  else
    line(text);
}

void Console::bar(std::string_view text) {
  // The carriage return puts the cursor at the beginning of the line, so that other output covers the bar.
  if (kind_ == Kind::terminal) write(fmt::format("{}{}\r", clear_line, text));
}

}  // namespace tessera
