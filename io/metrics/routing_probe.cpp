#include "io/metrics/routing_probe.hpp"

#include <algorithm>

#include "io/files/access.hpp"

namespace tessera {
namespace {

double kept_share(std::span<const std::int32_t> now, std::span<const std::int32_t> before, std::size_t top_k) {
  std::int64_t same = 0;
  for (std::size_t token = 0; token < now.size(); token += top_k) {
    const auto others = before.subspan(token, top_k);
    for (const std::int32_t expert : now.subspan(token, top_k)) same += std::ranges::count(others, expert);
  }
  return static_cast<double>(same) / static_cast<double>(now.size());
}

}  // namespace

RoutingProbe::RoutingProbe(std::filesystem::path path, std::int64_t step) : path_(std::move(path)) {
  if (entry_at(path_) == Entry::none) {
    const PosixFile made(path_, PosixFile::Mode::replace);
    return;
  }
  const PosixFile file(path_, PosixFile::Mode::read);
  const std::int64_t size = file.size();
  while (bytes_ + std::int64_t{sizeof(Head)} <= size) {
    Head head;
    file.read(bytes_, &head, sizeof head);
    const std::int64_t end = bytes_ + std::int64_t{sizeof head} + head.choices * 4;
    const bool sound = head.choices > 0 && head.layers > 0 && head.top_k > 0 && end > bytes_ && end <= size &&
                       head.choices % (head.layers * head.top_k) == 0;
    if (!sound || head.step > step) break;  // mutation: probes_of_another_line
    before_.resize(static_cast<std::size_t>(head.choices));
    file.read(bytes_ + std::int64_t{sizeof head}, before_.data(), head.choices * 4);
    head_ = head;
    bytes_ = end;
  }
  std::filesystem::resize_file(path_, static_cast<std::uintmax_t>(bytes_));
}

std::vector<double> RoutingProbe::kept(std::int64_t step, std::int64_t layers, std::int64_t top_k,
                                       std::span<const std::int32_t> choices) {
  std::vector<double> shares;
  const Head head{step, layers, top_k, std::ssize(choices)};
  const std::size_t slots = choices.size() / static_cast<std::size_t>(layers);
  if (head_ && head_->layers == layers && head_->top_k == top_k && head_->choices == head.choices)
    for (std::size_t layer = 0; layer < static_cast<std::size_t>(layers); ++layer)
      shares.push_back(kept_share(choices.subspan(layer * slots, slots),
                                  std::span(before_).subspan(layer * slots, slots), static_cast<std::size_t>(top_k)));
  PosixFile file(path_, PosixFile::Mode::write);
  file.write(bytes_ + std::int64_t{sizeof head}, choices.data(), head.choices * 4);
  file.write(bytes_, &head, sizeof head);  // last: an entry is there whole or not at all
  bytes_ += std::int64_t{sizeof head} + head.choices * 4;
  head_ = head;
  before_.assign(choices.begin(), choices.end());
  return shares;
}

}  // namespace tessera
