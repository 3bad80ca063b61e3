#include "core/step/step_memory.hpp"

#include <cstring>

#include "kernels/base/index.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {

static_assert(sizeof(StepSums) % 8 == 0, "sums travel as 64-bit words");

StepMemory::StepMemory(Device& device, const RankIn& world, std::int64_t sequences, std::int64_t length,
                       std::int64_t counters)
    : device_(device),
      world_(world),
      capacity_(sequences * length),
      length_(length),
      counters_(counters) {
  up_ = device.allocate(Category::batch, DType::u8, {tokens_offset + 2 * capacity_ * 4});
  down_ = device.allocate(Category::batch, DType::u8, {sums_offset() + world.size * std::int64_t{sizeof(StepSums)}});
  for (Pinned& block : pinned_) block = {device.pinned(up_.bytes()), device.pinned(down_.bytes()), {}, {}, {}, {}};
}

std::int64_t StepMemory::squares_offset() const {
  return round_up(clip_offset() + std::int64_t{sizeof(ClipResult)}, std::int64_t{64});
}
std::int64_t StepMemory::sums_offset() const {
  return round_up(squares_offset() + ExactSum::words * 8, Arena::alignment);
}

Tensor StepMemory::all_sums() const { return {at(sums_offset()), DType::i64, {world_.size * sum_words}}; }

void StepMemory::initialise(Stream& stream, const std::vector<std::uint64_t>& counters) {
  require(std::ssize(counters) == counters_, "StepMemory", "every counter has a word");
  std::vector<std::byte> start(static_cast<std::size_t>(down_.bytes()));
  std::memcpy(start.data(), counters.data(), counters.size() * sizeof counters[0]);
  device_.upload(stream, down_, start.data());
}

Turn StepMemory::begin(Stream& stream, const HostSequences& batch, const StepScalars& scalars) {
  const auto bytes = static_cast<std::size_t>(batch.sequences * length_ * 4);
  require(batch.sequences * length_ <= capacity_, "StepMemory", "more sequences than were planned");
  current_ = current_ == Turn::even ? Turn::odd : Turn::even;
  first_ = batch.first;
  if (Pinned& block = pinned(current_); !stream.dry()) {
    if (!block.sent.reached()) device_.wait(block.sent);
    std::memcpy(block.up.data(), &scalars, sizeof scalars);
    std::memcpy(block.up.data() + step_offset, &batch.step, sizeof batch.step);
    if (bytes > 0) {
      std::memcpy(block.up.data() + tokens_offset, batch.ids.data(), bytes);
      std::memcpy(block.up.data() + tokens_offset + capacity_ * 4, batch.targets.data(), bytes);
    }
    block.sent = device_.send(stream, up_, block.up.data());
    block.begin = stream.record_time();
  }
  clear_sums(stream);
  return current_;
}

void StepMemory::clear_sums(Stream& stream) {
  clear(stream, all_sums().flat(world_.rank * sum_words, sum_words));
}

Turn StepMemory::end(Stream& stream) {
  Pinned& block = pinned(current_);
  block.fetched = device_.fetch(stream, block.down.data(), down_);
  block.end = stream.record_time();
  return current_;
}

MicroBatch StepMemory::micro_batch(std::int64_t first, std::int64_t count, double loss_scale) const {
  auto* tokens = static_cast<std::byte*>(up_.data) + tokens_offset;
  const std::int64_t begin = first * length_ * 4;
  MicroBatch batch;
  batch.ids = {tokens + begin, DType::i32, {count * length_}};
  batch.targets = {tokens + capacity_ * 4 + begin, DType::i32, {count * length_}};
  batch.sequences = count;
  batch.loss_scale = loss_scale;
  batch.first_sequence = first_ + first;
  return batch;
}

StepReport StepMemory::report(Turn turn) {
  const Pinned& block = pinned(turn);
  device_.wait(block.end);  // behind the copy, and its time is asked for
  StepReport report;
  report.counters.resize(static_cast<std::size_t>(counters_));
  std::memcpy(report.counters.data(), block.down.data(), report.counters.size() * sizeof report.counters[0]);
  std::memcpy(&report.clip, block.down.data() + clip_offset(), sizeof report.clip);
  report.sums.resize(static_cast<std::size_t>(world_.size));
  report.begin = block.begin;
  report.end = block.end;
  std::memcpy(report.sums.data(), block.down.data() + sums_offset(), report.sums.size() * sizeof(StepSums));
  return report;
}

}  // namespace tessera
