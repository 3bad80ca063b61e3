// Times publishing a deck's weights, without other work. That is staging (each rank casts or quantizes its part of the
// masters) and the all-gathers alone. It is also settling (all-gathers and the copies that are derived from their
// results).
//
//   mpiexec -n RANKS publish DECK [KEY=VALUE ...]
//
// Prints a JSON line: medians over `rounds` of the slowest rank's milliseconds, and the bytes that rank 0 receives.
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "core/comm/mpi.hpp"
#include "core/comm/wrapper.hpp"
#include "core/params/param_sync.hpp"
#include "core/plan/plan.hpp"
#include "io/deck/deck.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

constexpr int warm_up = 3, rounds = 15;

/// An all-gather that can be submitted again: its buffers belong to ParamSync, its counts to the layout.
struct Gather {
  Communicator* communicator;
  std::vector<Exchange> exchanges;
  int group;
};

/// Wrapper that records all-gathers.
class Remembering final : public Wrapper {
 public:
  Remembering(std::unique_ptr<Communicator> inner, std::vector<Gather>& gathers)
      : Wrapper("remembering", std::move(inner)), gathers_(gathers) {}
  Pending submit(Stream& stream, const Operation& operation) override {
    if (operation.collective == Collective::all_gather)
      gathers_.push_back({&inner(), {operation.exchanges.begin(), operation.exchanges.end()}, operation.group});
    return inner().submit(stream, operation);
  }

 private:
  std::vector<Gather>& gathers_;
};

class Publication {
 public:
  Publication(const RunPlan& plan, Device& device, Mesh& mesh, Control& control)
      : device_(device),
        stream_(device.compute()),
        control_(control),
        masters_(device, plan.layout, mesh.ranks()),
        sync_(device, plan.registry, plan.layout, plan.schedule, masters_, mesh, plan.sync) {
    for (const Workspace& place : plan.sizes.workspaces) stream_.workspace(place.purpose, place.bytes);
    sync_.publish(stream_, masters_.initialise(stream_, plan.registry, plan.layout, mesh.ranks(), plan.seed));
  }

  void settle() { sync_.unshard_all(stream_); }

  /// The median over rounds of the slowest rank's milliseconds for `work`; `before` is not timed.
  double ms(const std::function<void()>& before, const std::function<void()>& work) {
    std::vector<double> times;
    for (int round = 0; round < warm_up + rounds; ++round) {
      before();
      device_.wait(stream_.record());
      control_.max(0);  // barrier: all ranks begin together
      const auto begin = std::chrono::steady_clock::now();
      work();
      device_.wait(stream_.record());
      const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
      times.push_back(static_cast<double>(control_.max(static_cast<std::int64_t>(spent.count()))) * 1e-6);
    }
    const auto median = times.begin() + warm_up + rounds / 2;
    std::nth_element(times.begin() + warm_up, median, times.end());
    return *median;
  }

  double staging_ms() {
    std::vector<Updated> updated;
    return ms(
        [&] {
          settle();
          updated.clear();
          updated.push_back(masters_.restore(stream_, [] {}));
        },
        [&] { sync_.publish(stream_, std::move(updated.back())); });
  }
  double settling_ms() {
    return ms([&] { sync_.publish(stream_, masters_.restore(stream_, [] {})); }, [&] { settle(); });
  }
  /// On a GPU replays a CUDA graph, like steps do, so that the device's time is measured, not the host's enqueuing.
  double gathering_ms(const std::vector<Gather>& gathers) {
    const auto gather = [&] {
      std::vector<Pending> pending;
      for (const Gather& one : gathers) {
        pending.push_back(
            one.communicator->submit(stream_, {Collective::all_gather, one.exchanges, one.group, "weights"}));
        if (pending.size() < 4) continue;
        pending.front().wait(stream_);
        pending.erase(pending.begin());
      }
      for (Pending& one : pending) one.wait(stream_);
    };
    if (!stream_.native()) return ms([] {}, gather);
    gather();
    device_.wait(stream_.record());
    const Graph graph = stream_.capture(gather);
    return ms([] {}, [&] { stream_.run(graph); });
  }

 private:
  Device& device_;
  Stream& stream_;
  Control& control_;
  Masters masters_;
  ParamSync sync_;
};

int run(Mpi& mpi, int argc, char** argv) {
  std::vector<Override> overrides;
  for (int i = 2; i < argc; ++i) overrides.push_back(override_of(argv[i]));
  Problems problems;
  const Deck deck = parse_deck(read_deck_text(argv[1], problems), argv[1], overrides, problems);
  problems.raise();
  const RunPlan plan = resolve(deck.config, mpi.size(), mpi.rank());
  const auto control = mpi.control(std::chrono::seconds(60));
  Device device;
  Mesh mesh = mpi.mesh(device, plan.ranks, std::chrono::seconds(60));
  std::vector<Gather> gathers;
  mesh.wrap([&](auto inner) { return std::make_unique<Remembering>(std::move(inner), gathers); });
  Publication publication(plan, device, mesh, *control);
  gathers.clear();
  publication.settle();
  const std::vector<Gather> once = gathers;
  const double staging = publication.staging_ms(), settling = publication.settling_ms();
  const double gathering = publication.gathering_ms(once);
  std::int64_t bytes = 0;
  for (const Gather& one : once)
    bytes += Operation{Collective::all_gather, one.exchanges, one.group, ""}.bytes(one.communicator->rank(),
                                                                                   one.communicator->size());
  if (mpi.rank() == 0)
    fmt::print(
        "{{\"deck\": \"{}\", \"ranks\": {}, \"recipe\": \"{}\", \"gathers\": {}, \"mb\": {:.1f}, "
        "\"staging_ms\": {:.3f}, \"gathering_ms\": {:.3f}, \"settling_ms\": {:.3f}}}\n",
        deck.config.run.name, mpi.size(), name_of(deck.config.precision.recipe), once.size(),
        static_cast<double>(bytes) * 1e-6, staging, gathering, settling);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  Mpi mpi(&argc, &argv);
  if (argc < 2) {
    fmt::print(stderr, "publish DECK [KEY=VALUE ...]\n");
    return static_cast<int>(Exit::usage);
  }
  const Runtime runtime(
      1, Runtime::gpus().empty() ? -1 : mpi.local_rank() % static_cast<int>(std::ssize(Runtime::gpus())));
  return run(mpi, argc, argv);
}
