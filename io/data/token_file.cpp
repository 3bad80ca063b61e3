#include "io/data/token_file.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

using Bytes = std::span<const std::byte>;

[[noreturn]] void fail(const fs::path& path, const std::string& text) {
  throw Error(Exit::file, path.string() + ": " + text);
}

template <class T>
T number_at(const fs::path& path, Bytes bytes, std::size_t offset) {
  if (offset + sizeof(T) > bytes.size())
    fail(path, fmt::format("ends after {} bytes, inside its header", bytes.size()));
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Views mapped memory as numbers. The formats align them to their size.
template <class T>
std::span<const T> numbers(Bytes bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

TokenSpan tokens_of(Bytes bytes, std::int64_t width) {
  if (width == 1) return numbers<std::uint8_t>(bytes);
  if (width == 2) return numbers<std::uint16_t>(bytes);
  return numbers<std::uint32_t>(bytes);
}

TokenSpan read_llmc(const fs::path& path, Bytes bytes) {
  constexpr std::size_t header = 256 * sizeof(std::int32_t);
  const auto magic = number_at<std::int32_t>(path, bytes, 0), version = number_at<std::int32_t>(path, bytes, 4);
  const std::int64_t width = magic == 20240520 && version == 1 ? 2 : magic == 20240801 && version == 7 ? 4 : 0;
  if (width == 0)
    fail(path,
         fmt::format("not a token file: magic {}, version {}; this build reads llm.c's 20240520/1 (uint16) and "
                     "20240801/7 (uint32), and Megatron's .bin with its .idx beside it; for text set data.kind: text",
                     magic, version));
  number_at<std::int32_t>(path, bytes, header - 4);  // the whole header is there
  const std::int64_t count = number_at<std::int32_t>(path, bytes, 8);
  const auto held = static_cast<std::int64_t>(bytes.size() - header);
  if (count < 0 || held != count * width)
    fail(path, fmt::format("its header promises {} tokens of {} bytes, the file holds {} bytes of them: truncated or "
                           "overwritten, write it again",
                           count, width, held));
  return tokens_of(bytes.subspan(header), width);
}

// MMIDIDX: magic, version u64, type u8, sequences u64, documents u64, sizes i32[sequences], offsets i64[sequences], ...
TokenSpan read_megatron(const fs::path& path, Bytes bytes, const fs::path& index_path) {
  const MappedFile index(index_path);
  const Bytes head = index.bytes();
  if (head.size() < 9 || std::memcmp(head.data(), "MMIDIDX\0\0", 9) != 0)
    fail(index_path, "not a Megatron index: it does not begin with MMIDIDX");
  const auto version = number_at<std::uint64_t>(index_path, head, 9);
  if (version != 1) fail(index_path, fmt::format("index version {}, this build reads 1", version));
  const auto type = number_at<std::uint8_t>(index_path, head, 17);
  const std::int64_t width = type == 1 ? 1 : type == 8 ? 2 : type == 4 ? 4 : 0;
  if (width == 0)
    fail(index_path, fmt::format("token type {}, this build reads 1 (uint8), 4 (int32) and 8 (uint16)", type));
  const auto sequences = number_at<std::uint64_t>(index_path, head, 18);
  constexpr std::size_t sizes = 34;
  if (sequences > (head.size() - sizes) / 12)
    fail(index_path, fmt::format("promises {} sequences, more than its {} bytes hold", sequences, head.size()));
  std::int64_t tokens = 0;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const auto offset = number_at<std::int64_t>(index_path, head, sizes + 4 * sequences + 8 * i);
    const auto size = number_at<std::int32_t>(index_path, head, sizes + 4 * i);
    if (size < 0 || offset != tokens * width)
      fail(index_path, fmt::format("sequence {} does not begin where the one before it ends", i));
    tokens += size;
  }
  if (static_cast<std::int64_t>(bytes.size()) != tokens * width)
    fail(path, fmt::format("its index promises {} tokens of {} bytes, the file holds {} bytes: truncated, or another "
                           "file's index",
                           tokens, width, bytes.size()));
  return tokens_of(bytes, width);
}

}  // namespace

TokenFile::TokenFile(const fs::path& path) : path_(path), file_(path) {
  const fs::path index = fs::path(path).replace_extension(".idx");
  std::error_code unknown;
  tokens_ = path.extension() == ".bin" && fs::exists(index, unknown) ? read_megatron(path, file_.bytes(), index)
                                                                     : read_llmc(path, file_.bytes());
}

}  // namespace tessera
