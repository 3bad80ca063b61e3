// Measures how much of a slow network's time overlaps with computation. Times a training step whose collectives take
// latency + bytes/bandwidth, one at a time. Compares it with its computation alone (nothing moves) and its
// communication alone (by that formula). Ranks share the machine, so the computation alone runs on all at once.
//
//   mpiexec -n RANKS throttled [STEPS]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "core/comm/mpi.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"
#include "kernels/base/runtime.hpp"
#include "tests/support/throttled.hpp"

namespace tessera {
namespace {

constexpr double latency_us = 10;

/// A dense model of 4 layers x 256 in about fifteen groups, with one sequence a rank, so that communication matters.
RunConfig model(std::int64_t ranks, std::int64_t length) {
  RunConfig config;
  config.model.layers = 4;
  config.model.hidden = 256;
  config.model.heads = 4;
  config.model.seq_len = length;
  config.data.files = {"random tokens"};
  config.batch = {.global = ranks, .micro = 1};
  config.reduce.bucket_mib = 1;
  derive(config);
  return config;
}

HostSequences tokens(const RunPlan& plan) {
  HostSequences batch;
  batch.sequences = plan.sizes.local();
  for (std::int64_t i = 0; i < plan.sizes.local() * plan.config.model.seq_len; ++i) {
    batch.ids.push_back(static_cast<std::int32_t>(i * 37 % 251));
    batch.targets.push_back(static_cast<std::int32_t>((i + 1) * 37 % 251));
  }
  return batch;
}

/// Wrapper that moves data until it is frozen, so that numbers are those of training; then moves nothing.
class Frozen final : public Communicator {
 public:
  Frozen(std::unique_ptr<Communicator> inner, const bool& frozen) : inner_(std::move(inner)), frozen_(frozen) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return "frozen(" + inner_->name() + ")"; }
  Pending submit(Stream& stream, const Operation& operation) override {
    return frozen_ ? Pending(this, 0) : inner_->submit(stream, operation);
  }

 protected:
  void finish(Stream&, int) override {}
  void abandon(int) noexcept override {}

 private:
  std::unique_ptr<Communicator> inner_;
  const bool& frozen_;
};

using Connect = std::function<Mesh(Device&)>;

constexpr int warm_up = 3;

/// Milliseconds of a step on the slowest rank: median of `steps` steps after `warm_up` steps, when `frozen` is set.
double step_ms(const RunPlan& plan, Control& control, int steps, const Connect& connect, bool& frozen) {
  Device device;
  Mesh mesh = connect(device);
  Engine engine(device, plan, mesh);
  engine.initialise();
  const HostSequences batch = tokens(plan);
  std::vector<double> times;
  for (int step = 0; step < warm_up + steps; ++step) {
    if (step == warm_up) {
      engine.sync().unshard_all(engine.stream());  // no collective is under way when the network freezes
      frozen = true;
    }
    const auto begin = std::chrono::steady_clock::now();
    engine.report(engine.step(batch, {1e-4f}));
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count());
  }
  engine.sync().unshard_all(engine.stream());
  const auto median = times.begin() + warm_up + steps / 2;
  std::nth_element(times.begin() + warm_up, median, times.end());
  return static_cast<double>(control.max(static_cast<std::int64_t>(*median))) * 1e-6;
}

double communication_ms(const RunPlan& plan, double bytes_per_second) {
  double ms = 0;
  for (const CollectiveCost& cost : plan.collectives)
    ms += static_cast<double>(cost.count) *
          (latency_us * 1e-3 + static_cast<double>(cost.bytes) / bytes_per_second * 1e3);
  return ms;
}

void compare(Mpi& mpi, Control& control, std::int64_t length, int steps) {
  const RunPlan plan = resolve(model(mpi.size(), length), mpi.size(), mpi.rank());
  const auto wrapped = [&](Device& device, const Mesh::Wrap& wrapper) {
    Mesh mesh = mpi.mesh(device, plan.ranks, std::chrono::seconds(60));
    mesh.wrap(wrapper);
    return mesh;
  };
  for (const double gigabytes : {1.0, 10.0}) {
    bool frozen = false;
    const auto without = [&](Device& device) {
      return wrapped(device, [&](auto one) { return std::make_unique<Frozen>(std::move(one), frozen); });
    };
    const double computation = step_ms(plan, control, steps, without, frozen);
    const auto slow = [&](Device& device) {
      return wrapped(device, [&](auto one) { return test::throttled(std::move(one), latency_us, gigabytes * 1e9); });
    };
    const double step = step_ms(plan, control, steps, slow, frozen);
    const double communication = communication_ms(plan, gigabytes * 1e9);
    if (mpi.rank() != 0) continue;
    fmt::print(
        "{{\"ranks\": {}, \"tokens_per_rank\": {}, \"groups\": {}, \"gb_per_s\": {}, \"computation_ms\": {:.2f}, "
        "\"communication_ms\": {:.2f}, \"step_ms\": {:.2f}, \"ratio\": {:.3f}}}\n",
        mpi.size(), length, plan.layout.groups().size(), gigabytes, computation, communication, step,
        step / std::max(computation, communication));
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  Mpi mpi(&argc, &argv);
  const Runtime runtime(1);
  const auto control = mpi.control(std::chrono::seconds(60));
  const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  for (const std::int64_t length : {64, 256, 1024}) compare(mpi, *control, length, steps);
  return 0;
}
