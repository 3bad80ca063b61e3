// How much of a slow network hides behind computation: a training step whose collectives take latency +
// bytes/bandwidth, one at a time, beside its computation alone (collectives that move nothing) and its communication
// alone (that formula). usage: mpiexec -n RANKS throttled [STEPS]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "core/comm/mpi.hpp"
#include "core/plan/engine.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

constexpr double latency_us = 10;

/// A dense model, 4 layers deep and 256 wide, in about fifteen groups; one sequence a rank, so that communication
/// weighs.
RunConfig model(std::int64_t ranks, std::int64_t length) {
  RunConfig config;
  config.model.layers = 4;
  config.model.hidden = 256;
  config.model.heads = 4;
  config.model.seq_len = length;
  config.data.files = {"random tokens"};
  config.batch = {ranks, 1};
  config.reduce.bucket_mib = 1;
  derive(config);
  return config;
}

HostSequences tokens(const RunPlan& plan) {
  HostSequences batch;
  batch.sequences = plan.local_sequences;
  for (std::int64_t i = 0; i < plan.local_sequences * plan.config.model.seq_len; ++i) {
    batch.ids.push_back(static_cast<std::int32_t>(i * 37 % 251));
    batch.targets.push_back(static_cast<std::int32_t>((i + 1) * 37 % 251));
  }
  return batch;
}

using Connect = std::function<std::unique_ptr<Communicator>(Device&)>;

/// Milliseconds of a step on the slowest rank: the median of `steps`, after three to warm up.
double step_ms(const RunPlan& plan, Control& control, int steps, const Connect& connect) {
  Device device;
  const auto communicator = connect(device);
  Engine engine(device, plan, *communicator);
  engine.initialise();
  const HostSequences batch = tokens(plan);
  std::vector<double> times;
  control.max(0);  // all ranks begin together, since they share a machine
  for (int step = 0; step < steps + 3; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    engine.step(batch, 1e-4f);
    engine.report();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  engine.sync().settle(engine.stream());
  std::nth_element(times.begin() + 3, times.begin() + 3 + steps / 2, times.end());
  return static_cast<double>(
             control.max(static_cast<std::int64_t>(times[static_cast<std::size_t>(3 + steps / 2)] * 1e6))) *
         1e-6;
}

double communication_ms(const RunPlan& plan, double bytes_per_second) {
  double ms = 0;
  for (const CollectiveCost& cost : plan.collectives)
    ms += static_cast<double>(cost.count) *
          (latency_us * 1e-3 + static_cast<double>(cost.bytes) / bytes_per_second * 1e3);
  return ms;
}

void compare(Mpi& mpi, Control& control, std::int64_t length, int steps) {
  const RunPlan plan = resolve(model(mpi.size(), length), mpi.size());
  const double computation =
      step_ms(plan, control, steps, [&](Device&) { return planning_communicator(mpi.rank(), mpi.size()); });
  for (const double gigabytes : {1.0, 10.0}) {
    const double step = step_ms(plan, control, steps, [&](Device& device) {
      return throttled(mpi.world(device.communication(), std::chrono::seconds(60)), latency_us, gigabytes * 1e9);
    });
    const double communication = communication_ms(plan, gigabytes * 1e9);
    if (mpi.rank() == 0)
      fmt::print(
          "{{\"ranks\": {}, \"tokens_per_rank\": {}, \"groups\": {}, \"GB_per_s\": {}, \"computation_ms\": {:.2f}, "
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
  for (const std::int64_t length : {64, 128, 256}) compare(mpi, *control, length, steps);
  return 0;
}
