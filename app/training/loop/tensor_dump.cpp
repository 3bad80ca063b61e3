#include "app/training/loop/tensor_dump.hpp"

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

/// Bytes that one of `ranks` sends at once. Every rank receives those of all, a GiB at most.
constexpr std::size_t most_bytes(std::size_t ranks) {
  return std::min(std::size_t{16} << 20, (std::size_t{1} << 30) / ranks);
}
static_assert(most_bytes(4096) + sizeof(CapturedTensor::Range::first) <= INT_MAX / 4096);  // what Control gathers

/// The ranges of a tensor, none longer than one of `ranks` may send.
std::vector<CapturedTensor::Range> cut(const CapturedTensor& tensor, int ranks) {
  const auto size = static_cast<std::size_t>(size_of(tensor.type));
  const std::size_t most = most_bytes(static_cast<std::size_t>(ranks)) / size * size;
  std::vector<CapturedTensor::Range> ranges;
  for (const CapturedTensor::Range& range : tensor.ranges)
    for (std::size_t at = 0; at < range.bytes.size(); at += most)
      ranges.push_back({range.first + static_cast<std::int64_t>(at / size), range.bytes.substr(at, most)});
  return ranges;
}

/// A range as a text for Control, and back.
std::string packed(const CapturedTensor::Range& range) {
  std::string text(sizeof range.first, '\0');
  std::memcpy(text.data(), &range.first, sizeof range.first);
  return text + range.bytes;
}
CapturedTensor::Range unpacked(const std::string& text) {
  CapturedTensor::Range range{0, text.substr(sizeof range.first)};
  std::memcpy(&range.first, text.data(), sizeof range.first);
  return range;
}

}  // namespace

TensorDump::TensorDump(Device& device, const RunPlan& plan, Engine& engine, Control& control)
    : device_(device),
      plan_(plan),
      engine_(engine),
      control_(control),
      capture_(plan.config.debug.tensors, plan.sizes) {}

void TensorDump::before(std::int64_t step) {
  if (!plan_.config.debug.tensors.takes(step)) return;
  capture_.begin(device_, plan_, engine_.stream(), engine_.fresh_state());
  engine_.show_next(&capture_, &capture_);
}

bool TensorDump::after(std::int64_t step) {
  if (!plan_.config.debug.tensors.takes(step)) return false;
  // Rank 0 computes the step's first micro-batch, and so has some of every tensor, or knows its shape.
  std::string names;
  for (const auto& [name, tensor] : capture_.tensors()) names += name + '\n';
  std::istringstream all(control_.broadcast(names));
  Problems problems;
  std::optional<TensorFile> file;
  const std::filesystem::path path = std::filesystem::path(plan_.config.checkpoint.dir.get()) / tensor_file(step);
  if (control_.rank() == 0)
    attempt(problems, [&] {
      file.emplace(path, step);
      for (const auto& [name, tensor] : capture_.tensors()) file->add(name, tensor.shape, tensor.type, tensor.format);
    });
  for (std::string name; std::getline(all, name);) write(name, file, problems);
  if (file && problems.empty()) attempt(problems, [&] { file->close(); });
  control_.agree(problems);
  return true;
}

/// Rank 0 writes the ranges of all ranks. After a problem it takes the others' ranges, and writes no more.
void TensorDump::write(const std::string& name, std::optional<TensorFile>& file, Problems& problems) {
  const CapturedTensor& mine = capture_.tensors()[name];
  const std::vector<CapturedTensor::Range> ranges = cut(mine, control_.size());
  const std::int64_t rounds = control_.max(std::ssize(ranges));
  for (std::int64_t round = 0; round < rounds; ++round) {
    const bool some = round < std::ssize(ranges);
    for (const std::string& text : control_.gather(some ? packed(ranges[static_cast<std::size_t>(round)]) : "")) {
      if (control_.rank() != 0 || text.empty() || !problems.empty()) continue;
      CapturedTensor::Range range = unpacked(text);
      attempt(problems, [&] { file->write(name, mine.type, range.first, range.bytes); });
    }
  }
}

}  // namespace tessera
