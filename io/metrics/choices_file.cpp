#include "io/metrics/choices_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

constexpr std::int64_t version = 1;

std::string to_json(const ChoicesHeader& header) {
  return fmt::format(
      "{}{},\"blocks\":{},\"first_dense\":{},\"every\":{},\"experts\":{},\"top_k\":{},\"seq_len\":{},\"global\":{},"
      "\"seed\":{},\"corpus\":\"{}\",\"order\":\"{}\",\"run\":\"{}\",\"first_step\":{},\"first_sample\":{}}}\n",
      ChoicesFile::beginning, version, header.blocks, header.with_experts.first_dense, header.with_experts.every,
      header.experts, header.top_k, header.length, header.global, header.seed, hex(header.corpus), hex(header.order),
      hex(header.run), header.first_step, header.first_sample);
}

std::uint64_t number_of(const std::string& digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

ChoicesHeader header_of(const std::string& head, const std::filesystem::path& path) {
  const auto fail = [&](const std::string& why) {
    throw Error(Exit::file, fmt::format("{}: is no record that routing.record has written: {}", path.string(), why));
  };
  const auto json = nlohmann::json::parse(head.substr(0, head.find('\n')), nullptr, false);
  if (!json.is_object() || !json.contains("choices_version")) fail("it does not begin as one");
  ChoicesHeader header;
  try {
    if (json.at("choices_version") != version) fail("its version is not 1, which this build reads");
    header.blocks = json.at("blocks");
    header.with_experts = {json.at("first_dense"), json.at("every")};
    header.experts = json.at("experts");
    header.top_k = json.at("top_k");
    header.length = json.at("seq_len");
    header.global = json.at("global");
    header.seed = json.at("seed");
    header.corpus = number_of(json.at("corpus"));
    header.order = number_of(json.at("order"));
    header.run = number_of(json.at("run"));
    header.first_step = json.at("first_step");
    header.first_sample = json.at("first_sample");
  } catch (const nlohmann::json::exception& error) {
    fail(error.what());
  }
  const bool sound = header.blocks > 0 && header.with_experts.every > 0 && header.layers() > 0 && header.top_k > 0 &&
                     header.experts >= header.top_k && header.length > 0 && header.global > 0 &&
                     header.first_step > 0;
  if (!sound) fail("its head has sizes that no model has");
  return header;
}

ChoicesHeader read_header(const std::filesystem::path& path) {
  const PosixFile file(path, PosixFile::Mode::read);
  std::string head(static_cast<std::size_t>(std::clamp<std::int64_t>(file.size(), 0, ChoicesFile::head_bytes)), ' ');
  file.read(0, head.data(), std::ssize(head));
  ChoicesHeader header = header_of(head, path);
  if (std::ssize(head) < ChoicesFile::head_bytes)
    throw Error(Exit::file, fmt::format("{}: ends after {} bytes, inside its head", path.string(), head.size()));
  return header;
}

std::int64_t last_step_in(const ChoicesHeader& header, std::int64_t bytes) {
  const std::int64_t behind = bytes - ChoicesFile::head_bytes, of_step = header.bytes_of_step();
  return header.first_step - 1 + (behind + of_step - 1) / of_step;
}

/// Whether a token's experts are some, and each once.
bool are_choices(std::span<const std::int32_t> token, std::int64_t experts) {
  for (auto one = token.begin(); one != token.end(); ++one)
    if (*one < 0 || *one >= experts || std::find(token.begin(), one, *one) != one) return false;
  return true;
}

}  // namespace

std::string difference_of(const ChoicesHeader& record, const ChoicesHeader& needed) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, auto theirs, auto ours) {
    if (theirs != ours) differences.push_back(fmt::format("{} {} instead of {}", what, theirs, ours));
  };
  compare("layers", record.blocks, needed.blocks);
  compare("first_dense", record.with_experts.first_dense, needed.with_experts.first_dense);
  compare("every", record.with_experts.every, needed.with_experts.every);
  compare("experts", record.experts, needed.experts);
  compare("top_k", record.top_k, needed.top_k);
  compare("seq_len", record.length, needed.length);
  compare("batch.global", record.global, needed.global);
  compare("run.seed", record.seed, needed.seed);
  compare("corpus", hex(record.corpus), hex(needed.corpus));
  if (!differences.empty()) return fmt::format("{}", fmt::join(differences, ", "));
  if (record.order != needed.order)
    return "the corpus is cut, mixed or shuffled in another way, so that its samples are other windows";
  const std::int64_t theirs = record.sample_of(needed.first_step);
  if (theirs != needed.first_sample)
    return fmt::format("its step {} begins with sample {} instead of {}", needed.first_step, theirs,
                       needed.first_sample);
  return "";
}

ChoicesFile::ChoicesFile(const std::filesystem::path& path, Mode mode)
    : path_(path),
      header_(read_header(path)),
      file_(path, mode == Mode::read ? PosixFile::Mode::read : PosixFile::Mode::write) {}

void ChoicesFile::create(const std::filesystem::path& path, const ChoicesHeader& header) {
  std::string head = to_json(header);
  require(std::ssize(head) <= head_bytes, "ChoicesFile", "a head fits into its page");
  head.resize(head_bytes, ' ');
  PosixFile file(path, PosixFile::Mode::replace);
  file.write(0, head.data(), head_bytes);
}

void ChoicesFile::keep_up_to(const std::filesystem::path& path, std::int64_t step) {
  const ChoicesHeader header = read_header(path);
  const std::int64_t steps = std::max<std::int64_t>(0, step - header.first_step + 1);
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(head_bytes + steps * header.bytes_of_step()));
}

std::int64_t ChoicesFile::last_step() const { return last_step_in(header_, file_.size()); }

std::int64_t ChoicesFile::place(std::int64_t step, std::int64_t layer, std::int64_t slot) const {
  return head_bytes + (step - header_.first_step) * header_.bytes_of_step() + (layer * header_.slots() + slot) * 2;
}

void ChoicesFile::write(std::int64_t step, std::int64_t layer, std::int64_t slot,
                        std::span<const std::int32_t> choices) {
  std::vector<std::uint16_t> stored(choices.size());
  std::ranges::transform(choices, stored.begin(), [](std::int32_t e) { return static_cast<std::uint16_t>(e + 1); });
  file_.write(place(step, layer, slot), stored.data(), std::ssize(stored) * 2);
}

void ChoicesFile::read(std::int64_t step, std::int64_t layer, std::int64_t slot,
                       std::span<std::int32_t> choices) const {
  std::vector<std::uint16_t> stored(choices.size());
  file_.read(place(step, layer, slot), stored.data(), std::ssize(stored) * 2);
  std::ranges::transform(stored, choices.begin(), [](std::uint16_t one) { return std::int32_t{one} - 1; });
  const auto k = static_cast<std::size_t>(header_.top_k);
  for (std::size_t s = 0; s < choices.size(); s += k)
    if (!are_choices(choices.subspan(s, k), header_.experts))
      throw Error(Exit::file,
                  fmt::format("{}: step {}, layer {} of those with experts, token {} of the batch: holds no choice of "
                              "{} of {} experts: the run that wrote it was cut off there, or the file is damaged",
                              path_.string(), step, layer, (slot + static_cast<std::int64_t>(s)) / header_.top_k,
                              header_.top_k, header_.experts));
}

}  // namespace tessera
