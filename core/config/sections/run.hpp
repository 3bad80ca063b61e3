#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "core/config/section.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {

/// Section `run` of a deck.
struct RunSection {
  std::string name = "run";
  std::uint64_t seed = 1234;
  std::int64_t steps = 0;
  double mfu_peak = 0;
  Derived<std::int64_t> threads;  ///< the program fills it: only it knows the machine
  std::int64_t log_every = 0;
  std::int64_t stop_after = 0;
  std::string on_save;
  std::string on_end;
  std::int64_t hook_timeout_s = 60;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("name", self.name, Text::line, may_change, "Name of the run in logs and in the default of checkpoint.dir");
    v.key("seed", self.seed, at_least(0), fixed, 
          "Seed of the initial weights and, unless data.seed and precision.seed are given, of the data order and of "
          "stochastic rounding");
    v.required("steps", self.steps, from_to(0, 1e12), on_request,
               "Optimizer steps of the whole run, and of the schedule; 0: initial weights alone");
    v.key("mfu_peak", self.mfu_peak, from_to(0, 1e9), may_change,
          "What a rank's device computes at most, dense, in TFLOP/s, for MFU; 0: as its data sheet says, where known");
    v.derived("threads", self.threads, from_to(1, Runtime::most_threads), may_change,
              "OMP_NUM_THREADS, else the rank's share of cores", "Host threads of each rank; bits may depend on it");
    v.key("log_every", self.log_every, from_to(0, 1e12), may_change,
          "Steps between lines of the console, each with means since the line before; 0: a line a second");
    v.key("stop_after", self.stop_after, from_to(0, 1e6), may_change,
          "Evaluations in a row that may pass without a lower loss than the best before: then the run is done; 0: any");
    v.key("on_save", self.on_save, Text::line_or_empty, may_change,
          "Command of the shell that rank 0 runs after each save, while training goes on; empty: none. Its variables: "
          "TESSERA_RUN, TESSERA_STEP, TESSERA_STEPS, TESSERA_CHECKPOINT, TESSERA_DIGEST. A failure is told, and "
          "changes nothing");
    v.key("on_end", self.on_end, Text::line_or_empty, may_change,
          "Likewise when the run ends, finished or not; also TESSERA_END, why, and TESSERA_CODE, the exit code");
    v.key("hook_timeout_s", self.hook_timeout_s, from_to(1, 86400), may_change,
          "Seconds that a command of on_save or on_end may take; then it is ended");
  }

  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const RunSection&) const = default;
};

}  // namespace tessera
