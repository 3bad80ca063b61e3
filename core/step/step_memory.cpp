#include "core/step/step_memory.hpp"

#include <cstring>

#include "kernels/base/index.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {

static_assert(sizeof(StepSums) % 8 == 0, "sums travel as 64-bit words");

StepMemory::StepMemory(Device& device, const RankIn& world, const StepSizes& sizes, std::int64_t counters)
    : device_(device),
      world_(world),
      micro_batches_(sizes.micro_batches()),
      rounds_(sizes.rounds),
      micro_(sizes.micro),
      capacity_((sizes.local() + sizes.again) * sizes.length),
      length_(sizes.length),
      counters_(counters),
      positions_(sizes.positions),
      recorded_layers_(sizes.recorded_layers),
      experts_(sizes.experts),
      mixtures_(sizes.mixtures),
      slots_(sizes.slots()),
      given_(sizes.given ? sizes.rounds + sizes.again / sizes.micro : 0),
      kept_rounds_(sizes.kept_rounds) {
  up_ = device.allocate(Category::batch, DType::u8, {given_offset() + given_ * choices_bytes()});
  down_ = device.allocate(Category::batch, DType::u8, {chosen_offset() + kept_rounds_ * choices_bytes()});
  for (Pinned& block : pinned_) block = {device.pinned(up_.bytes()), device.pinned(down_.bytes()), {}, {}, {}, {}};
}

std::int64_t StepMemory::squares_offset() const {
  return round_up(clip_offset() + std::int64_t{sizeof(ClipResult)}, std::int64_t{64});
}
std::int64_t StepMemory::sums_offset() const {
  return round_up(squares_offset() + ExactSum::words * 8, Arena::alignment);
}

std::int64_t StepMemory::routing_offset() const { return sums_offset() + world_.size * words_of_rank() * 8; }
std::int64_t StepMemory::bias_offset() const {
  return routing_offset() + recorded_layers_ * RoutingRecord::words(experts_) * 8;
}

std::int64_t StepMemory::chosen_offset() const { return bias_offset() + recorded_layers_ * experts_ * 4; }
std::int64_t StepMemory::given_offset() const { return tokens_offset + (positions_ ? 3 : 2) * capacity_ * 4; }

RoutingRecords StepMemory::routing() const {
  if (recorded_layers_ == 0) return {};
  return {{at(routing_offset()), DType::i64, {recorded_layers_, RoutingRecord::words(experts_)}},
          {at(bias_offset()), DType::f32, {recorded_layers_, experts_}}};
}

StepSums* StepMemory::sums(std::int64_t round) const {
  return reinterpret_cast<StepSums*>(at(sums_offset())) + world_.rank * rounds_ + round;
}
Tensor StepMemory::counted_sums() const {
  const std::int64_t counted = ceil_div(micro_batches_ - world_.rank, std::int64_t{world_.size});
  return {sums(0), DType::u64, {counted, sum_words}};
}
Tensor StepMemory::all_sums() const { return {at(sums_offset()), DType::i64, {world_.size * words_of_rank()}}; }

void StepMemory::initialise(Stream& stream, const std::vector<std::uint64_t>& counters) {
  require(std::ssize(counters) == counters_, "StepMemory", "every counter has a word");
  std::vector<std::byte> start(static_cast<std::size_t>(down_.bytes()));
  std::memcpy(start.data(), counters.data(), counters.size() * sizeof counters[0]);
  device_.upload(stream, down_, start.data());
}

Turn StepMemory::begin(Stream& stream, const HostSequences& batch, const StepScalars& scalars, double target_scale) {
  const auto bytes = static_cast<std::size_t>(batch.sequences * length_ * 4);
  require(batch.sequences * length_ <= capacity_, "StepMemory", "more sequences than were planned");
  current_ = current_ == Turn::even ? Turn::odd : Turn::even;
  if (Pinned& block = pinned(current_); !stream.dry()) {
    if (!block.sent.reached()) device_.wait(block.sent);
    const StepInputs inputs{scalars, batch.step, target_scale};  // mutation: draws_repeat
    std::memcpy(block.up.data(), &inputs, sizeof inputs);
    if (bytes > 0) {
      std::memcpy(block.up.data() + tokens_offset, batch.ids.data(), bytes);
      std::memcpy(block.up.data() + tokens_offset + capacity_ * 4, batch.targets.data(), bytes);
    }
    if (!batch.positions.empty()) {
      require(positions_ && std::ssize(batch.positions) >= batch.sequences * length_, "StepMemory",
              "every token has a position, where that was planned");
      std::memcpy(block.up.data() + tokens_offset + 2 * capacity_ * 4, batch.positions.data(), bytes);
    }
    if (!batch.given.empty()) {
      require(std::ssize(batch.given) * 4 <= given_ * choices_bytes(), "StepMemory", "more choices than were planned");
      std::memcpy(block.up.data() + given_offset(), batch.given.data(), batch.given.size() * 4);
    }
    block.sent = device_.send(stream, up_, block.up.data());
    block.begin = stream.record_time();
  }
  clear_sums(stream);
  return current_;
}

void StepMemory::clear_sums(Stream& stream) {
  clear(stream, all_sums().flat(world_.rank * words_of_rank(), words_of_rank()));
  if (const RoutingRecords records = routing()) clear(stream, records.words);
}

Turn StepMemory::end(Stream& stream) {
  Pinned& block = pinned(current_);
  block.fetched = device_.fetch(stream, block.down.data(), down_);
  block.end = stream.record_time();
  return current_;
}

MicroBatch StepMemory::micro_batch(std::int64_t round, std::int64_t count, double loss_scale) const {
  auto* tokens = static_cast<std::byte*>(up_.data) + tokens_offset;
  const std::int64_t begin = round * micro_ * length_ * 4;
  MicroBatch batch;
  batch.ids = {tokens + begin, DType::i32, {count * length_}};
  batch.targets = {tokens + capacity_ * 4 + begin, DType::i32, {count * length_}};
  batch.sequences = count;
  batch.loss_scale = loss_scale;
  batch.target_scale = {&inputs()->target_scale, DType::f64, {1}};
  if (positions_) batch.positions = {tokens + 2 * capacity_ * 4 + begin, DType::i32, {count * length_}};
  batch.first_sequence = (round * world_.size + world_.rank) * micro_;
  if (round < given_)
    batch.choices.given = {tokens - tokens_offset + given_offset() + round * choices_bytes(), DType::i32,
                           choices_shape()};
  if (round < kept_rounds_)
    batch.choices.chosen = {at(chosen_offset() + round * choices_bytes()), DType::i32, choices_shape()};
  return batch;
}

MicroBatch StepMemory::micro_batch_of(int of, int number, double loss_scale) const {
  MicroBatch batch = micro_batch(rounds_ + number - 1, micro_, loss_scale);
  batch.first_sequence = of * micro_;
  return batch;
}

StepReport StepMemory::report(Turn turn) {
  const Pinned& block = pinned(turn);
  device_.wait(block.end);  // behind the copy, and its time is asked for
  StepReport report;
  report.counters.resize(static_cast<std::size_t>(counters_));
  std::memcpy(report.counters.data(), block.down.data(), report.counters.size() * sizeof report.counters[0]);
  std::memcpy(&report.clip, block.down.data() + clip_offset(), sizeof report.clip);
  report.begin = block.begin;
  report.end = block.end;
  if (const RoutingRecords records = routing()) {
    report.routing.resize(static_cast<std::size_t>(records.words.elements()));
    std::memcpy(report.routing.data(), block.down.data() + routing_offset(), report.routing.size() * 8);
    report.bias.resize(static_cast<std::size_t>(records.bias.elements()));
    std::memcpy(report.bias.data(), block.down.data() + bias_offset(), report.bias.size() * sizeof(float));
  }
  report.chosen.resize(static_cast<std::size_t>(kept_rounds_ * mixtures_ * slots_));
  if (!report.chosen.empty())
    std::memcpy(report.chosen.data(), block.down.data() + chosen_offset(), report.chosen.size() * 4);
  for (std::int64_t m = 0; m < micro_batches_; ++m) {
    const std::int64_t place = m % world_.size * rounds_ + m / world_.size;  // mutation: sums_by_rank
    std::memcpy(&report.sums.emplace_back(), block.down.data() + sums_offset() + place * std::int64_t{sizeof(StepSums)},
                sizeof(StepSums));
  }
  return report;
}

}  // namespace tessera
