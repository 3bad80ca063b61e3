// disagree WHEN KIND: the last rank calls other collectives than the rest.
//  WHEN  debug: compared before each; boundary: all begun, then compared; wait: each is waited for, then compared;
//        ahead: all begun, then more work behind them than a GPU's queue holds
//  KIND  order: #2 and #3 swapped; across: the same, with #2 an exchange of rows between neighbours only, whose counts
//        differ by pair; group: such a #2 in another process group; op, count: another operation or count in #2;
//        missing: no #5, a call of Control instead; silent: no #5, the rank sleeps; none: nothing wrong
// The time-out is a few seconds for kinds that only a time-out detects; for others it is too long to be reached.
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/comm/mpi.hpp"
#include "core/device/device.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"

namespace {

using namespace tessera;

/// One operation over `elements` u64 for each rank of `group`, with its memory.
class Call {
 public:
  Call(Device& device, Communicator& group, Collective collective, std::int64_t elements)
      : group_(group),
        collective_(collective),
        counts_(static_cast<std::size_t>(group.size()), elements),
        begins_(counts_.size()) {
    std::exclusive_scan(counts_.begin(), counts_.end(), begins_.begin(), std::int64_t{0});
    const auto memory = [&](std::int64_t n) { return device.allocate(Category::batch, DType::u64, {n}); };
    const std::int64_t all = elements * group.size();
    exchange_ = {memory(collective == Collective::all_gather ? elements : all),
                 memory(collective == Collective::all_to_all ? all - elements : all), counts_, begins_};
    if (collective == Collective::exchange_rows) exchange_.arrivals = counts_;
  }
  Pending begin(Stream& stream) const { return group_.get().submit(stream, {collective_, {&exchange_, 1}, 7, "test"}); }

 private:
  std::reference_wrapper<Communicator> group_;
  Collective collective_;
  std::vector<std::int64_t> counts_, begins_;
  Exchange exchange_;
};

bool of_neighbours(const std::string& kind) { return kind == "group" || kind == "across"; }

std::vector<Call> calls(Device& device, Mesh& mesh, const std::string& kind, bool odd) {
  const Collective second = odd && kind == "op" ? Collective::all_reduce_max : Collective::all_reduce_sum;
  std::vector<Call> list;
  const auto add = [&](Collective collective, std::int64_t n) {
    list.emplace_back(device, mesh.world(), collective, n);
  };
  add(Collective::all_gather, 10);
  add(Collective::all_reduce_max, 20);
  if (kind == "op") {
    add(second, 30);
  } else if (of_neighbours(kind)) {
    Communicator& group = odd && kind == "group" ? mesh.of(ProcessGroup::expert) : mesh.experts();
    list.emplace_back(device, group, Collective::exchange_rows, 5 + mesh.ranks().expert_data.rank);
  } else {
    add(Collective::all_to_all, odd && kind == "count" ? 31 : 30);
  }
  add(Collective::all_gather, 30);
  if (odd && (kind == "order" || kind == "across")) std::swap(list[2], list[3]);
  add(Collective::all_reduce_max, 50);
  if (!odd || (kind != "missing" && kind != "silent")) add(Collective::all_gather, 100000);
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  Mpi mpi(&argc, &argv);
  if (argc != 3) return 2;
  const std::string when = argv[1], kind = argv[2];
  const int gpus = static_cast<int>(Runtime::gpus().size());
  // NCCL connects ranks at the first collective of a kind, and would wait there for ranks that begin with another.
  const bool hangs = kind == "silent" || (when == "wait" && kind != "none") || (when == "debug" && kind == "missing") ||
                     (gpus > 0 && when == "boundary" && (kind == "order" || of_neighbours(kind)));
  const std::chrono::seconds timeout(hangs ? 5 : 300);
  const Runtime runtime(0, gpus == 0 ? -1 : mpi.local_rank() % gpus);
  Device device;
  Stream& stream = device.compute();
  const MpiOptions options{.compare = when == "debug" ? Compare::before_each : Compare::at_boundaries};
  Mesh mesh = mpi.mesh(device, mpi.ranks(of_neighbours(kind) ? 2 : 1), timeout, options);
  const auto control = mpi.control(timeout);

  const bool odd = mpi.rank() == mpi.size() - 1;
  const std::vector<Call> list = calls(device, mesh, kind, odd);
  const Tensor some = device.allocate(Category::batch, DType::u64, {1});
  clear(stream, some);  // a kernel's first launch loads it, and may wait for all work under way
  std::vector<Pending> pending;
  for (const Call& call : list) {
    pending.push_back(call.begin(stream));
    if (when == "boundary" || when == "ahead") continue;
    pending.back().wait(stream);
    device.wait(stream.record());
  }
  if (odd && kind == "silent") sleep(600);  // until the other ranks end it
  if (when == "ahead") {
    for (Pending& one : pending) one.wait(stream);
    for (int i = 0; i < 5000; ++i) clear(stream, some);
  }
  mesh.log()->compare(*control);
  for (Pending& one : pending)
    if (one) one.wait(stream);
  device.wait(stream.record());
  if (mpi.rank() == 0) std::printf("all agreed\n");
  return 0;
}
