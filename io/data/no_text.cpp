#include "io/data/no_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "io/data/utf8.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

using namespace std::string_view_literals;

constexpr const char* unpack = "unpack it";
constexpr const char* extract = "extract its text, to .txt or .jsonl, first";
constexpr const char* tokens = "set data.kind: tokens, and model.vocab or data.tokenizer";
constexpr const char* write_tokens = "write its tokens as llm.c's .bin, for data.kind: tokens, or its text as .txt";
constexpr const char* leave_out = "leave it out of the patterns";
constexpr const char* utf8 = "write it as UTF-8: iconv -f {} -t UTF-8";

// Bytes at an offset by which a format is known.
struct Mark {
  std::size_t offset;
  std::string_view bytes;
  const char* what;
  const char* remedy;
};

constexpr Mark marks[] = {
    {0, "\x1f\x8b"sv, "is compressed by gzip", unpack},
    {0, "\x28\xb5\x2f\xfd"sv, "is compressed by zstd", unpack},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     "is compressed by xz", unpack},
    {4, "1AY&SY"sv, "is compressed by bzip2", unpack},
    {0, "\x04\x22\x4d\x18"sv, "is compressed by lz4", unpack},
    {0, "\x1f\x9d"sv, "is compressed by compress", unpack},
    {0, "PK\x03\x04"sv, "is a zip archive (or .npz, .docx, .xlsx, which are such)", extract},
    {0, "PK\x05\x06"sv, "is an empty zip archive", leave_out},
    {0, "7z\xbc\xaf\x27\x1c"sv, "is a 7-Zip archive", unpack},
    {0, "Rar!\x1a\x07"sv, "is a RAR archive", unpack},
    {257, "ustar"sv, "is a tar archive", unpack},
    {0, "PAR1"sv, "is a Parquet table", extract},
    {0, "ARROW1"sv, "is an Arrow table", extract},
    {0, "\x93NUMPY"sv, "is an array of NumPy (.npy)", write_tokens},
    {0, "\x89HDF\r\n\x1a\n"sv, "is an HDF5 file", write_tokens},
    {0, "\x88\xd8\x34\x01"sv, "is a token file of llm.c", tokens},  // 20240520, little-endian
    {0, "\xa1\xd9\x34\x01"sv, "is a token file of llm.c", tokens},  // 20240801
    {0, "MMIDIDX\0"sv, "is the index of a token file of Megatron", "name its .bin, with data.kind: tokens"},
    {0, "version https://git-lfs"sv, "is a pointer of git-lfs, not the file itself", "fetch it by git lfs pull"},
    {0, "\x89PNG\r\n"sv, "is a PNG picture", leave_out},
    {0, "\xff\xd8\xff"sv, "is a JPEG picture", leave_out},
    {0, "GIF8"sv, "is a GIF picture", leave_out},
    {0, "RIFF"sv, "is a RIFF file (WebP, WAV, AVI)", leave_out},
    {0, "%PDF-"sv, "is a PDF document", extract},
    {0, "\xd0\xcf\x11\xe0"sv, "is a document of an old Office", extract},
    {0,
     "\x7f"
     "ELF"sv,
     "is a program", leave_out},
    {0, "SQLite format 3\0"sv, "is a database of SQLite", extract},
    {0, "GGUF"sv, "is a GGUF model", leave_out},
};

bool has(std::string_view text, std::size_t offset, std::string_view bytes) {
  return text.size() >= offset + bytes.size() && text.substr(offset, bytes.size()) == bytes;
}

// Whether the bytes alone tell the format: short words of letters begin texts too.
bool certain(const Mark& mark) {
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  return mark.bytes.size() > 4 || !std::ranges::all_of(mark.bytes, printable);
}

// safetensors: the length of a header of JSON in 8 bytes, then the header.
bool is_safetensors(std::string_view text) {
  if (text.size() < 10) return false;
  std::uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof header);
  return header >= 2 && header <= text.size() - 8 && text[8] == '{';
}

bool is_megatron(const fs::path& path) {
  std::error_code absent;
  return path.extension() == ".bin" && fs::is_regular_file(fs::path(path).replace_extension(".idx"), absent);
}

// The encoding of Unicode other than UTF-8 that the text is in, or null. Without a mark: UTF-16 of mostly Latin letters
// has a NUL in every second byte.
const char* wide_encoding(std::string_view text) {
  if (has(text, 0, "\xff\xfe\0\0"sv) || has(text, 0, "\0\0\xfe\xff"sv)) return "UTF-32";
  if (has(text, 0, "\xff\xfe"sv) || has(text, 0, "\xfe\xff"sv)) return "UTF-16";
  const std::string_view sample = text.substr(0, 4096);
  std::size_t nul[2] = {};
  for (std::size_t i = 0; i < sample.size(); ++i) nul[i % 2] += sample[i] == '\0';
  const std::size_t most = sample.size() / 2 - sample.size() / 8;
  if (sample.size() < 8 || std::min(nul[0], nul[1]) > 0) return nullptr;
  return nul[1] > most ? "UTF-16LE" : nul[0] > most ? "UTF-16BE" : nullptr;
}

// Bytes that are part of no character of UTF-8. Control characters are text here.
std::size_t broken(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size();) {
    const bool ascii = static_cast<unsigned char>(text[i]) < 0x80;
    const std::size_t length = ascii ? 1 : character_at(text, i);
    const bool control = length == 0 && has(text, i, "\xc2"sv) && i + 1 < text.size() &&
                         (static_cast<unsigned char>(text[i + 1]) & 0xc0) == 0x80;  // U+0080 to U+009F
    count += length == 0 && !control;
    i += control ? 2 : std::max<std::size_t>(length, 1);
  }
  return count;
}

/// What a file is instead of text, and what to do about it. Empty for text.
struct NoText {
  std::string what, remedy;
};

NoText no_text(const fs::path& path, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.empty()) return {};
  if (is_megatron(path)) return {"is a token file of Megatron, with its .idx beside it", tokens};
  const std::size_t bad = broken(text), nul = text.find('\0');
  const bool sound = nul == text.npos && bad * 100 <= text.size();
  for (const Mark& mark : marks)
    if ((!sound || certain(mark)) && has(text, mark.offset, mark.bytes)) return {mark.what, mark.remedy};
  if (is_safetensors(text)) return {"is a safetensors file", leave_out};
  if (const char* encoding = wide_encoding(text))
    return {fmt::format("is text in {}", encoding), fmt::format(fmt::runtime(utf8), encoding)};
  if (nul != text.npos) return {fmt::format("is binary (a NUL at byte {})", nul), leave_out};
  if (sound) return {};
  return {fmt::format("has {} bytes of {} that are not UTF-8", bad, text.size()),
          fmt::format(fmt::runtime(utf8), "WINDOWS-1252") + " if a spreadsheet or an editor wrote it, else " +
              leave_out};
}

}  // namespace

std::string why_no_text(const fs::path& path, std::span<const std::byte> bytes) {
  const auto [what, remedy] = no_text(path, bytes);
  return what.empty() ? "" : fmt::format("{}, and data.kind text takes UTF-8 text: {}", what, remedy);
}

std::string what_instead_of_text(const fs::path& path, std::span<const std::byte> bytes) {
  return no_text(path, bytes).what;
}

}  // namespace tessera
