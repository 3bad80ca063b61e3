#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/reader.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace {

/// The source's tensor of the same slot and name for each tensor wanted; null if it has none.
StoredTensors counterparts(const TensorSource& source, const std::vector<StateTensor>& wanted) {
  using Name = std::pair<std::string_view, std::string_view>;  // slot and name
  std::map<Name, const StoredTensor*> stored;
  for (const StoredTensor& tensor : source.tensors())
    stored.emplace_hint(stored.end(), Name(tensor.slot, tensor.name), &tensor);
  StoredTensors found;
  for (const StateTensor& tensor : wanted) {
    const auto at = stored.find(Name(tensor.slot, tensor.name));
    found.push_back(at == stored.end() ? nullptr : at->second);
  }
  return found;
}

enum class Widening { none, bf16_to_fp32 };

/// Whether learned positions of longer sequences serve a model of shorter ones, which takes the first rows.
bool takes_first_rows(const StoredTensor& found, const StateTensor& wanted) {
  const bool positions = wanted.role == Role::position && found.shape.rank() == 2 && wanted.shape.rank() == 2;
  return positions && found.shape[1] == wanted.shape[1] && found.shape[0] > wanted.shape[0];
}

/// Whether a tensor takes the rows of a smaller one, and keeps its further rows.
bool takes_rows_of(const StoredTensor& found, const StateTensor& wanted, const std::vector<std::string>& may_grow) {
  const bool rows = found.shape.rank() == 2 && wanted.shape.rank() == 2 && found.shape[1] == wanted.shape[1];
  return rows && found.shape[0] < wanted.shape[0] && std::ranges::find(may_grow, wanted.name) != may_grow.end();
}

/// Why a tensor cannot take the values of its counterpart; empty: it can.
std::string misfit(const StoredTensor& found, const StateTensor& wanted, Widening widening, const Fit& fit) {
  if (found.shape != wanted.shape && !(widening == Widening::bf16_to_fp32 && takes_first_rows(found, wanted)) &&
      !takes_rows_of(found, wanted, fit.may_grow))
    return fmt::format("shape: {} is {}, the model has {}", wanted.path(), found.shape.text(), wanted.shape.text());
  const bool widens = widening == Widening::bf16_to_fp32 && found.type == DType::bf16 && wanted.type == DType::f32;
  if (found.type != wanted.type && !widens)
    return fmt::format("type: {} is {}, the model has {}", wanted.path(), name_of(found.type), name_of(wanted.type));
  if (const std::string axes = axes_of(wanted.role, wanted.shape.rank()); found.axes != axes)
    return fmt::format("axes: {} has {}, the model {}", wanted.path(), found.axes, axes);
  return "";
}

std::string missing(const TensorSource& source, const StateTensor& wanted) {
  std::string line = "missing: " + wanted.path();
  for (const StoredTensor& tensor : source.tensors())
    if (tensor.tied_to == wanted.name) line += " (there tied to " + tensor.path() + ")";
  return line;
}

/// Differences between the tensors wanted and their counterparts, a line each.
std::vector<std::string> differences(const TensorSource& source, const std::vector<StateTensor>& wanted,
                                     const StoredTensors& found, Widening widening, const Fit& fit) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (found[i])
      lines.push_back(misfit(*found[i], wanted[i], widening, fit));
    else if (std::ranges::find(fit.may_miss, wanted[i].name) == fit.may_miss.end())
      lines.push_back(missing(source, wanted[i]));
  std::erase(lines, "");
  return lines;
}

/// The source's tensors that no tensor wanted has for a counterpart.
StoredTensors extra(const TensorSource& source, const StoredTensors& found) {
  const std::set<const StoredTensor*> known(found.begin(), found.end());
  StoredTensors extra;
  for (const StoredTensor& tensor : source.tensors())
    if (!known.contains(&tensor)) extra.push_back(&tensor);
  return extra;
}

/// Reads this rank's part and returns the digests of what arrived in the state's memory: on a GPU they are summed
/// there. Values that change their type are digested on the host, before conversion.
std::vector<std::uint64_t> arrived(const TensorSource& source, const StateDict& state, const StoredTensors& found,
                                   Device& device) {
  Stream& stream = device.compute();
  const bool on_gpu = stream.native();
  const Tensor sums = state.digests.flat(0, std::ssize(state.tensors));
  std::vector<std::uint64_t> on_host(state.tensors.size()), on_device(state.tensors.size());
  std::vector<std::byte> converted;
  clear(stream, sums);
  const auto place = [&](const Slab& slab, const std::byte* elements) {
    const Tensor& to = slab.values;
    const DType type = found[slab.tensor]->type;
    const bool converts = type != to.type;
    if (converts || !on_gpu)
      std::atomic_ref(on_host[slab.tensor]) += host_digest(elements, type, to.elements(), slab.first);
    if (!on_gpu) return convert_elements(to.data, to.type, elements, type, to.elements());
    if (converts) {
      converted.resize(static_cast<std::size_t>(to.bytes()));
      convert_elements(converted.data(), to.type, elements, type, to.elements());
      elements = converted.data();
    }
    device.upload(stream, to, elements);
    if (!converts)
      digest(stream, state.digests.as<std::uint64_t>() + slab.tensor, to, static_cast<std::uint64_t>(slab.first));
  };
  source.read_each(state.tensors, found, place, on_gpu ? On::calling_thread : On::tasks);
  device.download(stream, on_device.data(), sums);
  std::ranges::transform(on_host, on_device, on_host.begin(), std::plus());
  return on_host;
}

/// The digest of this rank's share of a stored tensor's elements from `first` on, which no rank's state takes. Local.
std::uint64_t digest_of_rest(const TensorSource& source, const StoredTensor& stored, std::int64_t first,
                             const Control& control) {
  constexpr std::int64_t most = std::int64_t{1} << 20;  // elements held at a time
  const std::int64_t rest = stored.shape.elements() - first;
  const auto begin_of = [&](int rank) { return first + rest * rank / control.size(); };
  const std::int64_t end = begin_of(control.rank() + 1);
  std::vector<std::byte> elements;
  std::uint64_t sum = 0;
  for (std::int64_t at = begin_of(control.rank()); at < end; at += most) {
    const std::int64_t count = std::min(most, end - at);
    elements.resize(static_cast<std::size_t>(count * size_of(stored.type)));
    source.read(stored, at, count, elements.data());
    sum += host_digest(elements.data(), stored.type, count, at);
  }
  return sum;
}

/// Loads every tensor of `state` that has a counterpart and compares its bytes with their digest. A longer counterpart
/// is read to its end for that: its digest covers the rows that are not taken too. Collective over the world.
void load_tensors(const TensorSource& source, const StoredTensors& found, StateDict& state, Device& device,
                  Control& control) {
  Problems problems;
  std::vector<std::uint64_t> digests(state.tensors.size());
  attempt(problems, [&] {
    digests = arrived(source, state, found, device);
    for (std::size_t i = 0; i < digests.size() && source.has_digests(); ++i)
      if (const std::int64_t taken = state.tensors[i].shape.elements(); found[i] && found[i]->shape.elements() > taken)
        digests[i] += digest_of_rest(source, *found[i], taken, control);
  });
  control.agree(problems);
  control.sum(digests.data(), static_cast<int>(digests.size()));
  for (std::size_t i = 0; i < digests.size() && source.has_digests(); ++i)
    if (found[i] && digests[i] != found[i]->digest)
      problems.add(Exit::file,
                   fmt::format("{}: {} holds other bytes than were saved", source.name(), state.tensors[i].path()));
  control.agree(problems);
}

}  // namespace

std::vector<std::string> misfits(const TensorSource& source, const std::vector<StateTensor>& wanted, const Fit& fit) {
  const StoredTensors found = counterparts(source, wanted);
  std::vector<std::string> lines = differences(source, wanted, found, Widening::bf16_to_fp32, fit);
  for (const StoredTensor* tensor : extra(source, found))
    if (fit.extra == Fit::Extra::refused && tensor->slot == "model") lines.push_back("extra: " + tensor->path());
  return lines;
}

void load_weights(const TensorSource& source, StateDict& state, Device& device, Control& control) {
  load_tensors(source, counterparts(source, state.tensors), state, device, control);
}

namespace {

/// Differences between the counters of a run's rules and those saved, by name and type, a line each.
std::vector<std::string> differences(const std::vector<RuleCounter>& saved, const std::vector<RuleCounter>& wanted) {
  const auto type_of = [](const RuleCounter& counter) {
    return std::holds_alternative<double>(counter.value) ? "f64" : "i64";
  };
  std::vector<std::string> lines;
  for (const RuleCounter& counter : wanted)
    if (const auto found = std::ranges::find(saved, counter.name, &RuleCounter::name); found == saved.end())
      lines.push_back("missing: " + counter.path());
    else if (found->value.index() != counter.value.index())
      lines.push_back(
          fmt::format("type: {} is {}, the optimizer has {}", counter.path(), type_of(*found), type_of(counter)));
  for (const RuleCounter& counter : saved)
    if (std::ranges::find(wanted, counter.name, &RuleCounter::name) == wanted.end())
      lines.push_back("extra: " + counter.path());
  return lines;
}

}  // namespace

void load(const Checkpoint& checkpoint, StateDict& state, Device& device, Control& control) {
  Problems problems;
  const StoredTensors found = counterparts(checkpoint, state.tensors);
  std::vector<std::string> lines = differences(checkpoint, state.tensors, found, Widening::none, {});
  for (const StoredTensor* tensor : extra(checkpoint, found)) lines.push_back("extra: " + tensor->path());
  std::ranges::move(differences(checkpoint.manifest().counters.rules, state.counters.rules), std::back_inserter(lines));
  if (const std::string lack = checkpoint.reason_not_resumable(); !lack.empty())
    problems.add(Exit::file, lack);
  else if (!lines.empty())
    problems.add(Exit::file, fmt::format("{}: is of another model: {} difference{}\n  {}", checkpoint.name(),
                                         lines.size(), lines.size() == 1 ? "" : "s", fmt::join(lines, "\n  ")));
  control.agree(problems);
  load_tensors(checkpoint, found, state, device, control);
  state.counters = checkpoint.manifest().counters;
}

}  // namespace tessera
