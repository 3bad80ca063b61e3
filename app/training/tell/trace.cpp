#include "app/training/tell/trace.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "core/params/labels.hpp"
#include "core/step/quantizer_statistics.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

std::int64_t trace_row(PlaneKind kind) {
  return static_cast<std::int64_t>(Traced::weights) + static_cast<std::int64_t>(kind);
}

}  // namespace

Trace::Trace(const std::string& path, Device& device, const StepPlan& plan, Engine& engine, Control& control,
             std::vector<Record>& records)
    : path_(path), device_(device), plan_(plan), engine_(engine), control_(control), records_(records) {
  for (const Dataset& dataset : plan.registry.datasets()) {
    name_of_.insert(name_of_.end(), dataset.params.size(), static_cast<int>(names_.size()));
    names_.push_back(plan.registry.canonical(dataset).name);
    const BucketId bucket = plan.layout.placement(dataset.params.front()).bucket;
    shared_by_.push_back(plan.layout.buckets()[bucket].key.processes);
  }
  sums_ = trace_digests(device, plan);
  stored_.resize(names_.size());
  engine.sync().visit_planes([&](const Plane& plane) {
    for (const Placement& p : plan.layout.buckets()[plane.bucket].members)
      stored_[static_cast<std::size_t>(name_of_[static_cast<std::size_t>(p.param.value)])].insert(plane.kind);
  });
  engine.observe(this);
  engine.sync().observe([this](Stream& stream, const Plane& array) { consumed(stream, array); });
}

std::uint64_t* Trace::sum(std::int64_t which, int name) const {
  return sums_.as<std::uint64_t>() + which * sums_.shape[1] + name;
}

void Trace::reduced(Stream& stream, const Reduced& gradients) {
  Row next;
  sort_records(row_, next);
  if (open_) write(stream);
  row_ = std::move(next);
  const QuantizeLaunches now = stream.library<QuantizeLaunches>();
  row_.quantize = {now.weights - launched_.weights, now.activations - launched_.activations,
                   now.gradients - launched_.gradients};
  launched_ = now;
  open_ = true;
  clear(stream, sums_);
  hashed_.clear();
  add_digests(stream, sum(static_cast<std::int64_t>(Traced::gradient), 0), plan_,
              [&](BucketId b) { return gradients.shard(b); });
}

void Trace::stepped(Stream& stream) {
  sort_records(row_, row_);  // the norm's all-reduce belongs to this step, not to the next one
  add_digests(stream, sum(static_cast<std::int64_t>(Traced::master), 0), plan_,
              [&](BucketId b) { return engine_.masters().shard(b); });
}

void Trace::consumed(Stream& stream, const Plane& plane) {
  if (!open_ || engine_.averaged()) return;  // gathers of initial weights and of averages belong to no step
  if (hashed_.insert({plane.bucket.value, plane.kind}).second) hash_plane(stream, plane);
}

/// Adds the digests of a stored array. Entries are numbered from the tensor's first member, as in files; vocabulary
/// padding, which files do not have, is left out.
void Trace::hash_plane(Stream& stream, const Plane& plane) {
  const std::vector<Placement>& members = plan_.layout.buckets()[plane.bucket].members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Placement& p = members[i];
    const Entries& entries = plane.members[i];
    const std::int64_t real = plane.kind == PlaneKind::rowwise ? entries.count * p.real.value / p.size.value
                                                               : entries.count;
    const std::int64_t first = p.canonical.value / p.size.value * entries.count;
    digest(stream, sum(trace_row(plane.kind), name_of_[static_cast<std::size_t>(p.param.value)]),
           plane.values.flat(entries.first, real), static_cast<std::uint64_t>(first));
  }
}

/// Moves recorded collectives to the rows of steps. All-gathers of weights, and the all-reduce of their amaxes, belong
/// to the earlier step, whose weights they carry; others to the current step. Sums for the report, and what statistics
/// exchange, are dropped.
void Trace::sort_records(Row& earlier, Row& current) {
  for (const Record& record : records_) {
    if (record.label == label::statistics) continue;
    const bool gather = record.collective == Collective::all_gather && record.label != label::running_sums;
    if (gather && record.group < 0) continue;
    const bool publishes = gather || record.collective == Collective::all_reduce_max;
    (publishes ? earlier : current).collectives.push_back(record);
  }
  records_.clear();
}

/// Drops the records of row exchanges by evaluations, which belong to no step.
void Trace::drop_exchanges() {
  std::erase_if(records_, [](const Record& record) { return record.collective == Collective::exchange_rows; });
}

/// Zeroes the digests of stored weights except on the lowest of the ranks that share them. All of these hold the whole
/// weights, and digests are summed over ranks.
void Trace::leave_to_owners(std::vector<std::uint64_t>& sums) const {
  const std::size_t n = names_.size(), weights = static_cast<std::size_t>(Traced::weights) * n;
  for (std::size_t i = weights; i < sums.size(); ++i)
    if (plan_.ranks.first_sharer(shared_by_[i % n], plan_.ranks.world.rank) != plan_.ranks.world.rank) sums[i] = 0;
}

void Trace::report(std::int64_t step, const StepReport& report, double loss, std::uint64_t chain) {
  row_.step = step;
  row_.loss = loss;
  row_.norm = report.clip.norm;
  row_.chain = chain;
  row_.routing = report.routing;
  row_.logits = 0;
  for (const StepSums& sums : report.sums) row_.logits += sums.logits;
}

void Trace::finish(Stream& stream) {
  drop_exchanges();
  engine_.sync().inspect(stream, [](const Plane&) {});
  sort_records(row_, row_);
  if (open_) write(stream);
  open_ = false;
}

void Trace::write(Stream& stream) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(sums_.elements()));
  device_.download(stream, sums.data(), sums_);
  leave_to_owners(sums);  // gradients and masters: each rank has hashed its own slices only
  control_.sum(sums.data(), static_cast<int>(sums.size()));
  Problems problems;
  if (control_.rank() == 0) attempt(problems, [&] { write_row(sums, problems); });
  control_.agree(problems);
}

/// Opens the file. That of the starts before, which a resumed run goes on from, gets the next free number.
void Trace::open() {
  std::error_code unknown;
  if (row_.step > 1 && std::filesystem::is_regular_file(path_, unknown) &&
      std::filesystem::file_size(path_, unknown) > 0) {
    std::string kept;
    for (int number = 1; kept.empty() || std::filesystem::exists(kept, unknown); ++number)
      kept = fmt::format("{}.{}", path_, number);
    std::filesystem::rename(path_, kept);
    fmt::print("debug.trace: the rows of the starts before are in {}\n", kept);
  }
  file_.open(path_, std::ios::trunc);
}

nlohmann::ordered_json Trace::choices() const {
  nlohmann::ordered_json digests;
  const GptShape& shape = plan_.model.shape();
  auto words = row_.routing.begin();
  for (std::int64_t block = 0; block < shape.layers && words != row_.routing.end(); ++block) {
    if (!shape.has_experts(block)) continue;
    const auto digest = static_cast<std::uint64_t>(words[RoutingRecord::choices(shape.moe->experts)]);
    digests[fmt::format("layers.{}.moe", block)] = hex(digest);
    words += RoutingRecord::words(shape.moe->experts);
  }
  return digests;
}

void Trace::write_row(const std::vector<std::uint64_t>& sums, Problems& problems) {
  const auto n = names_.size();
  const auto digest_of = [&](auto which, std::size_t i) { return hex(sums[static_cast<std::size_t>(which) * n + i]); };
  nlohmann::ordered_json row{
      {"step", row_.step},
      {"chain", hex(row_.chain)},
      {"loss", row_.loss},
      {"norm", row_.norm},
      {"logits", hex(row_.logits)}};
  if (!row_.routing.empty()) row["choices"] = choices();
  for (std::size_t i = 0; i < n; ++i) {
    row["gradients"][names_[i]] = digest_of(Traced::gradient, i);
    row["masters"][names_[i]] = digest_of(Traced::master, i);
    for (const PlaneKind kind : stored_[i])
      row["weights"][names_[i]][name_of(kind)] = digest_of(trace_row(kind), i);
  }
  row["collectives"] = nlohmann::ordered_json::array();
  for (const Record& record : row_.collectives)
    row["collectives"].push_back({{"op", name_of(record.collective)},
                                  {"label", record.label},
                                  {"group", record.group},
                                  {"buckets", record.buckets},
                                  {"bytes", record.bytes}});
  // Number of collectives that overlapped with computation since the row before.
  const Overlapped overlapped = engine_.sync().overlapped();
  row["overlapped"] = {{"gathers", overlapped.gathers - overlapped_.gathers},
                       {"reductions", overlapped.reductions - overlapped_.reductions}};
  overlapped_ = overlapped;
  if (plan_.registry.quantizes())
    row["quantize"] = {{"weights", row_.quantize.weights},
                       {"activations", row_.quantize.activations},
                       {"gradients", row_.quantize.gradients}};
  if (!file_.is_open()) open();
  file_ << row.dump() << std::endl;
  if (!file_) problems.add(Exit::environment, "debug.trace: " + path_ + ": a row cannot be written (disk full?)");
}

}  // namespace tessera
