#include "io/data/marks_file.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <variant>

#include "io/files/crc.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t header_bytes = 1024;
constexpr std::int32_t magic = 20261127, version = 1;

struct Header {
  std::int32_t magic, version;
  std::int64_t count;
  std::uint32_t crc;
};

[[noreturn]] void fail(const fs::path& path, const std::string& text) {
  throw Error(Exit::file, path.string() + ": " + text);
}

/// The marks of a file that was made for these tokens.
std::span<const std::uint8_t> marks_of(const fs::path& path, std::span<const std::byte> bytes, const TokenFile& of) {
  Header header = {};
  if (bytes.size() >= header_bytes) std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != magic || header.version != version)
    fail(path, fmt::format("is no file of marks: {}/{} at its begin are needed; prepare.py --chat writes it", magic,
                           version));
  const auto held = static_cast<std::int64_t>(bytes.size() - header_bytes);
  const std::span<const std::byte> tokens = std::visit([](auto ids) { return std::as_bytes(ids); }, of.tokens());
  const std::int64_t wanted = std::visit([](auto ids) { return std::ssize(ids); }, of.tokens());
  if (header.count != held || held != wanted)
    fail(path, fmt::format("promises {} marks and holds {}, and {} has {} tokens: truncated, or of another file; write "
                           "both again",
                           header.count, held, of.path().string(), wanted));
  if (crc32_by<0xEDB88320u>(tokens) != header.crc)
    fail(path, fmt::format("was made for other tokens than {} holds: write both again", of.path().string()));
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()) + header_bytes, static_cast<std::size_t>(held)};
}

}  // namespace

fs::path marks_beside(const fs::path& token_file) { return fs::path(token_file).replace_extension(".marks"); }

MarksFile::MarksFile(const TokenFile& of)
    : file_(marks_beside(of.path())), marks_(marks_of(marks_beside(of.path()), file_.bytes(), of)) {}

}  // namespace tessera
