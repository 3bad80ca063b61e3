#include "core/model/row_exchange.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/base/index.hpp"

namespace tessera {
namespace {

/// Row counts of a dry pass, which has no routing: even shares.
DispatchCounts even_counts(const ArrivalShape& shape, DryRows dry) {
  DispatchCounts counts;
  for (std::int64_t r = 0; r < shape.ranks; ++r)
    counts.sent.push_back(shape.share / shape.ranks + (r < shape.share % shape.ranks ? 1 : 0));
  counts.received = counts.sent;
  counts.arriving = dry == DryRows::most ? shape.room : shape.share;
  counts.rows = shape.rows(counts.arriving);
  return counts;
}

}  // namespace

DispatchCounts row_counts(const ArrivalShape& shape, std::span<const std::int32_t> counts) {
  const std::int64_t held = shape.held();
  const auto at = [&](std::int64_t rank, std::int64_t expert) -> std::int64_t {
    return counts[static_cast<std::size_t>(rank * shape.experts + expert)];
  };
  /// Number of rows that rank `from` has for the experts of rank `to`.
  const auto between = [&](std::int64_t from, std::int64_t to) {
    std::int64_t sum = 0;
    for (std::int64_t e = to * held; e < (to + 1) * held; ++e) sum += at(from, e);
    return sum;
  };
  DispatchCounts result;
  std::int64_t most = 0;
  for (std::int64_t r = 0; r < shape.ranks; ++r) {
    result.sent.push_back(between(shape.place, r));
    result.received.push_back(between(r, shape.place));
    std::int64_t of_rank = 0;
    for (std::int64_t from = 0; from < shape.ranks; ++from) of_rank += between(from, r);
    most = std::max(most, of_rank);
  }
  const bool fit = most <= shape.room;
  if (!fit) {
    result.sent.assign(result.sent.size(), 0);
    result.received = result.sent;
  }
  result.arriving = std::reduce(result.received.begin(), result.received.end());
  for (std::int64_t e = 0; fit && e < held; ++e) {
    std::int64_t of_expert = 0;
    for (std::int64_t r = 0; r < shape.ranks; ++r) of_expert += at(r, shape.place * held + e);
    result.rows += round_up(of_expert, shape.row_multiple);
  }
  result.rows = std::max(result.rows, shape.row_multiple);
  return result;
}

RowExchange::Cut::Cut(std::int64_t columns, const std::vector<std::int64_t>& sent,
                      const std::vector<std::int64_t>& received) {
  const auto elements = [columns](std::int64_t rows) { return rows * columns; };
  std::ranges::transform(sent, std::back_inserter(counts), elements);
  std::ranges::transform(received, std::back_inserter(arrivals), elements);
  begins.resize(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::int64_t{0});
}

RowExchange::RowExchange(Device& device, Communicator& group, std::int64_t experts, DryRows dry)
    : device_(device), group_(group), dry_(dry) {
  pinned_ = device.pinned(group.size() * experts * size_of(DType::i32));
  row_counts_.assign(static_cast<std::size_t>(group.size()), experts);
  for (std::int64_t r = 0; r < group.size(); ++r) row_begins_.push_back(r * experts);
}

void RowExchange::reach(const SharedMemory& memory) {
  counts_ = device_.allocate(Category::staging, DType::i32, {group_.size(), row_counts_.front()});
  distances_ = device_.allocate(Category::staging, DType::i64, {group_.size()});
  all_counts_ = {{}, counts_, row_counts_, row_begins_};
  if (device_.measuring()) return;
  reached_ = static_cast<std::byte*>(memory.bytes.data);
  const std::vector<std::byte*> all = group_.reach(memory);
  if (all.empty())
    throw Error(Exit::environment,
                "proof.expert_rows: peers needs expert groups whose ranks reach each other's memory: GPUs of one host "
                "with proof.copy_engines, or ranks on the CPUs of one host; use exchange");
  std::vector<std::int64_t> distances;
  for (std::byte* const theirs : all)
    distances.push_back(reinterpret_cast<std::intptr_t>(theirs) - reinterpret_cast<std::intptr_t>(reached_));
  device_.upload(device_.compute(), distances_, distances.data());
  Exchange* const counts[] = {&all_counts_};
  group_.open(counts);
}

void RowExchange::gather(Stream& stream, const ArrivalShape& shape) {
  require(shape.ranks == group_.size() && shape.place == group_.rank(), "RowExchange", "is of another expert group");
  group_.submit(stream, {Collective::all_gather, {&all_counts_, 1}, -1, "row counts"}).wait(stream);
}

Pending RowExchange::move(Stream& stream, const ArrivalShape& shape, std::span<const Tensor> rows, const char* label,
                          const std::function<void(Stream&)>& kernels) {
  const DispatchCounts even = even_counts(shape, DryRows::even);
  cuts_.clear();
  for (const Tensor& one : rows) cuts_.emplace_back(one.columns(), even.sent, even.received);
  std::vector<Exchange> exchanges;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Tensor share = rows[i].row_range(0, shape.share);
    exchanges.push_back({share, share, cuts_[i].counts, cuts_[i].begins, cuts_[i].arrivals});
  }
  const DirectMove direct{kernels, static_cast<std::byte*>(rows.front().data) - reached_};
  return group_.submit(stream, {Collective::exchange_rows, exchanges, -1, label, &direct});
}

Event RowExchange::gather(Stream& stream, const ArrivalShape& shape, const Tensor& counts) {
  require(shape.ranks == group_.size() && shape.place == group_.rank(), "RowExchange", "is of another expert group");
  const Exchange all{{}, counts, row_counts_, row_begins_};
  group_.submit(stream, {Collective::all_gather, {&all, 1}, -1, "row counts"}).wait(stream);
  return device_.fetch(stream, pinned_.data(), counts);
}

DispatchCounts RowExchange::gathered(Stream& stream, const ArrivalShape& shape, const Event& copied) {
  if (stream.dry()) return even_counts(shape, dry_);
  device_.wait(copied);
  return row_counts(shape, {reinterpret_cast<const std::int32_t*>(pinned_.data()),
                            static_cast<std::size_t>(shape.ranks * shape.experts)});
}

Pending RowExchange::exchange(Stream& stream, std::span<const Move> moves, const std::vector<std::int64_t>& sent,
                              const std::vector<std::int64_t>& received, const char* label) {
  cuts_.clear();
  for (const Move& move : moves) cuts_.emplace_back(move.from.columns(), sent, received);
  std::vector<Exchange> exchanges;
  for (std::size_t i = 0; i < moves.size(); ++i)
    exchanges.push_back({moves[i].from, moves[i].to, cuts_[i].counts, cuts_[i].begins, cuts_[i].arrivals});
  return group_.submit(stream, {Collective::exchange_rows, exchanges, -1, label});
}

Pending RowExchange::dispatch(Stream& stream, const DispatchCounts& counts, std::span<const Move> moves,
                              const char* label) {
  return exchange(stream, moves, counts.sent, counts.received, label);
}

Pending RowExchange::combine(Stream& stream, const DispatchCounts& counts, const Move& move, const char* label) {
  return exchange(stream, {&move, 1}, counts.received, counts.sent, label);
}

}  // namespace tessera
