#include "io/convert/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "io/files/text_file.hpp"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t longest_header = 100'000'000;  // the format's own limit
constexpr std::int64_t prefix = 8;                    // bytes before the header, which hold its length

struct TypeName {
  const char* name;
  DType type;
};
constexpr TypeName plain[] = {{"F32", DType::f32}, {"BF16", DType::bf16}, {"U8", DType::u8}};
/// Bits of an element of a safetensors type; empty for unknown types.
std::optional<std::int64_t> bits_of(const std::string& type) {
  static const std::map<std::string, std::int64_t> known = {
      {"F64", 64}, {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64}, {"I32", 32},
      {"I16", 16}, {"I8", 8},      {"U64", 64},    {"U32", 32},    {"U16", 16}, {"U8", 8},
      {"BOOL", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},   {"C64", 64}};
  const auto found = known.find(type);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

class Header {
 public:
  explicit Header(const std::filesystem::path& path)
      : path_(path), file_(path, PosixFile::Mode::read), size_(file_.size()) {
    std::uint64_t length = 0;
    if (size_ < prefix) fail("is no safetensors file: shorter than its header's length");
    file_.read(0, &length, prefix);
    std::string beginning(static_cast<std::size_t>(std::min<std::int64_t>(size_, 64)), '\0');
    file_.read(0, beginning.data(), std::ssize(beginning));
    refuse_git_lfs_pointer(path_, beginning);
    if (length > static_cast<std::uint64_t>(longest_header) || static_cast<std::int64_t>(length) > size_ - prefix)
      fail(fmt::format("is no safetensors file: a header of {} bytes in a file of {}", length, size_));
    payload_ = prefix + static_cast<std::int64_t>(length);
    std::string text(length, '\0');
    file_.read(prefix, text.data(), std::ssize(text));
    json_ = parse(text);
    if (!json_.is_object()) fail("is no safetensors file: its header is no JSON object");
  }

  std::vector<SourceTensor> tensors() const {
    std::vector<SourceTensor> list;
    for (const auto& [name, entry] : json_.items())
      if (name != "__metadata__") list.push_back(tensor(name, entry));
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    for (const auto& [name, entry] : json_.items())
      if (name != "__metadata__") ranges.emplace_back(entry["data_offsets"][0], entry["data_offsets"][1]);
    std::sort(ranges.begin(), ranges.end());
    std::int64_t end = 0;
    for (const auto& [first, last] : ranges) {
      if (first != end)
        fail(fmt::format("is damaged: its tensors overlap or leave a gap at byte {} of the payload", end));
      end = last;
    }
    if (end != size_ - payload_)
      fail(fmt::format("is damaged: {} bytes of payload instead of {}", size_ - payload_, end));
    return list;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(Exit::file, path_.string() + ": " + what); }

  nlohmann::json parse(const std::string& text) const {
    std::set<std::string> seen;
    std::string twice;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      if (depth == 1 && event == nlohmann::json::parse_event_t::key && !seen.insert(value.get<std::string>()).second)
        twice = value;
      return true;
    };
    auto json = nlohmann::json::parse(text, watch, false);
    if (json.is_discarded()) fail("is no safetensors file: its header is no JSON");
    if (!twice.empty()) fail("is damaged: " + twice + " is there twice");
    return json;
  }

  SourceTensor tensor(const std::string& name, const nlohmann::json& entry) const {
    const auto shaped = [&] {
      if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()) return false;
      if (!entry.contains("shape") || !entry["shape"].is_array()) return false;
      if (!entry.contains("data_offsets") || !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2)
        return false;
      const auto counts = [](const nlohmann::json& list) {
        return std::all_of(list.begin(), list.end(), [](const nlohmann::json& n) {
          return n.is_number_unsigned() && n.get<std::uint64_t>() < std::uint64_t{1} << 62;
        });
      };
      return counts(entry["shape"]) && counts(entry["data_offsets"]);
    };
    if (!shaped()) fail(name + ": no dtype, shape and data_offsets of a tensor");
    SourceTensor t;
    t.name = name;
    const std::string type = entry["dtype"];
    const std::int64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    if (end < begin || end > size_ - payload_)
      fail(name + ": lies outside the file: it was truncated or its header is wrong");
    t.offset = payload_ + begin;
    std::int64_t elements = 1;
    for (const std::int64_t n : entry["shape"])
      if (__builtin_mul_overflow(elements, n, &elements))
        fail(fmt::format("{}: {} has more elements than a file holds", name, entry["shape"].dump()));
    const auto bits = bits_of(type);
    if (bits && (elements > (std::numeric_limits<std::int64_t>::max() - 7) / *bits ||
                 (elements * *bits + 7) / 8 != end - begin))
      fail(fmt::format("{}: {} bytes for {} elements of {}", name, end - begin, elements, type));
    describe(t, type, entry["shape"]);
    return t;
  }

  static void describe(SourceTensor& t, const std::string& type, const std::vector<std::int64_t>& dims) {
    const auto known =
        std::find_if(std::begin(plain), std::end(plain), [&](const TypeName& k) { return type == k.name; });
    if (known != std::end(plain))
      t.type = known->type;
    else if (type == "F16")
      t.encoding = Encoding::half;
    else
      t.unreadable = "of type " + type;  // codes of E4M3 are no values without their scales
    if (type == "F8_E4M3") {
      t.type = DType::u8;
      t.encoding = Encoding::e4m3;
    }
    if (dims.size() <= Shape::most_dims)
      t.shape = Shape(dims);
    else
      t.unreadable = fmt::format("of {} axes", dims.size());
  }

  std::filesystem::path path_;
  PosixFile file_;
  std::int64_t size_, payload_ = 0;
  nlohmann::json json_;
};

/// Creates the file, or empties it; returns its path.
std::filesystem::path made(const std::filesystem::path& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) throw Error(Exit::environment, path.string() + ": cannot be made");
  return path;
}

}  // namespace

std::vector<SourceTensor> list_safetensors(const std::filesystem::path& path) { return Header(path).tensors(); }

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SourceTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)), path_(made(path)), file_(path_, PosixFile::Mode::write) {
  // Readers such as transformers check this key before they read any tensor.
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  for (SourceTensor& t : tensors_) {
    const auto known =
        std::find_if(std::begin(plain), std::end(plain), [&](const TypeName& k) { return t.type == k.type; });
    if (known == std::end(plain))
      throw Error(Exit::internal, t.name + ": safetensors of this program hold f32, bf16 and u8");
    const char* const type = t.encoding == Encoding::e4m3 ? "F8_E4M3" : known->name;
    if (header.contains(t.name)) throw Error(Exit::internal, t.name + ": is there twice");
    const std::int64_t bytes = t.shape.elements() * size_of(t.type);
    header[t.name] = {
        {"dtype", type}, {"shape", t.shape.dims()}, {"data_offsets", {missing_, missing_ + bytes}}};
    t.offset = missing_;
    missing_ += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // payload begins at a multiple of 8
  const std::uint64_t length = text.size();
  for (SourceTensor& t : tensors_) t.offset += prefix + std::ssize(text);
  file_.reserve(std::max<std::int64_t>(prefix + std::ssize(text) + missing_, 1));
  file_.write(0, &length, prefix);
  file_.write(prefix, text.data(), std::ssize(text));
}

void SafetensorsWriter::write(std::size_t index, std::int64_t begin, const void* from, std::int64_t bytes) {
  const SourceTensor& t = tensors_.at(index);
  require(begin >= 0 && bytes >= 0 && begin + bytes <= t.shape.elements() * size_of(t.type), "SafetensorsWriter",
          "the piece leaves its tensor");
  file_.write(t.offset + begin, from, bytes);
  missing_ -= bytes;
}

void SafetensorsWriter::finish() {
  require(missing_ == 0, "SafetensorsWriter", "every byte is written once");
  file_.sync();
}

}  // namespace tessera
