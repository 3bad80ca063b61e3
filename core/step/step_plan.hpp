#pragma once
#include <cstdint>
#include <vector>

#include "core/config/sections/optimizer.hpp"
#include "core/layout/layout.hpp"
#include "core/model/gpt.hpp"
#include "core/optim/balance.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/sync_schedule.hpp"
#include "core/step/step_sizes.hpp"

namespace tessera {

/// What an Engine is built from, for one rank: a pure value. RunPlan adds the findings of a dry run.
struct StepPlan {
  Ranks ranks;             ///< this rank among all
  std::uint64_t seed = 0;        ///< seed of the initial weights
  std::uint64_t draws_seed = 0;  ///< seed of stochastic rounding
  bool graph = false;      ///< capture steps as a CUDA graph and replay them, if the device can
  ParamRegistry registry;
  Gpt model;
  ParamLayout layout;
  Usage usage;
  SyncRules sync;
  SyncSchedule schedule;  ///< follows from the fields above

  SyncInputs sync_inputs() const { return {usage, registry, layout, ranks, sync}; }
  OptimizerConfig optimizer;
  BalanceSettings balance;
  StepSizes sizes;
};

}  // namespace tessera
