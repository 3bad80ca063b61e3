#include "app/training/loop/replicas.hpp"

#include <fmt/format.h>

#include "core/step/debug_memory.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

ReplicaCheck::ReplicaCheck(Device& device, const StepPlan& plan)
    : device_(device), plan_(plan), sums_(replica_digests(device, plan)) {}

void ReplicaCheck::compare(Stream& stream, ParamSync& sync, Control& control, std::int64_t step) {
  control.agree(differences(stream, sync, control, step));
}

Problems ReplicaCheck::differences(Stream& stream, ParamSync& sync, Control& control, std::int64_t step) {
  const auto buckets = static_cast<std::size_t>(sums_.elements());
  clear(stream, sums_);
  sync.inspect(stream, [&](const Plane& plane) {
    const auto first = static_cast<std::uint64_t>(plane.kind) << 56;  // so that swapped arrays change the digest
    for (const Entries& member : plane.members)  // gaps between members are undefined
      digest(stream, sums_.as<std::uint64_t>() + plane.bucket.value, plane.values.flat(member.first, member.count),
             first + static_cast<std::uint64_t>(member.first));
  });
  std::vector<std::uint64_t> mine(buckets);
  device_.download(stream, mine.data(), sums_);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(std::uint64_t));
  const std::vector<std::string> all = control.gather(bytes);
  Problems problems;
  for (std::size_t b = 0; b < buckets; ++b)
    for (std::size_t r = 1; r < all.size(); ++r) {
      const ProcessGroup processes = plan_.layout.buckets()[{static_cast<int>(b)}].key.processes;
      const int first = plan_.ranks.first_sharer(processes, static_cast<int>(r));
      if (all[r].compare(b * 8, 8, all[static_cast<std::size_t>(first)], b * 8, 8) != 0)
        problems.add(Exit::internal,
                     fmt::format("step {}: bucket {} of rank {} differs from rank {}'s: the replicas of its weights "
                                 "have parted",
                                 step, b, r, first));
    }
  return problems;
}

}  // namespace tessera
