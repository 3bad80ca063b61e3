#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/config/section.hpp"
#include "core/config/sections/batch.hpp"
#include "core/config/sections/checkpoint.hpp"
#include "core/config/sections/comm.hpp"
#include "core/config/sections/data.hpp"
#include "core/config/sections/debug.hpp"
#include "core/config/sections/eval.hpp"
#include "core/config/sections/gather.hpp"
#include "core/config/sections/model.hpp"
#include "core/config/sections/optimizer.hpp"
#include "core/config/sections/parallel.hpp"
#include "core/config/sections/precision.hpp"
#include "core/config/sections/proof.hpp"
#include "core/config/sections/recompute.hpp"
#include "core/config/sections/reduce.hpp"
#include "core/config/sections/routing.hpp"
#include "core/config/sections/run.hpp"
#include "core/config/sections/sample.hpp"

namespace tessera {

/// What one run was asked to do: the deck's sections (section.hpp says what they are) and two keys outside of them.
struct RunConfig {
  std::int64_t schema_version = 1;
  RunSection run;
  ModelConfig model;
  RecomputeConfig recompute;
  DataConfig data;
  BatchConfig batch;
  EvalConfig eval;
  SampleConfig sample;
  RoutingConfig routing;
  PrecisionConfig precision;
  Sharding sharding = Sharding::optimizer;
  GatherConfig gather;
  ReduceConfig reduce;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  CommConfig comm;
  CheckpointConfig checkpoint;
  DebugConfig debug;
  ProofConfig proof;

  template <class Self, class V> static void visit(Self& self, V& v) {
    v.required("schema_version", self.schema_version, from_to(1, 1), Restart::fixed, "Version of the deck's keys");
    v.section("run", self.run, "The run as a whole");
    v.section("model", self.model, "The network");
    v.section("recompute", self.recompute, "Memory against time in backward");
    v.section("data", self.data, "The corpus");
    v.section("batch", self.batch, "How much a step sees");
    v.section("eval", self.eval, "Loss on windows that training never sees");
    v.section("sample", self.sample, "Text generated from the model while it trains");
    v.section("routing", self.routing, "What is recorded of where routers send tokens");
    v.section("precision", self.precision, "Number formats");
    v.key("sharding", self.sharding, OneOf(), Restart::told_of_sums,
          "What a rank keeps a part of. optimizer: masters and moments; full: weights and gradients too, which are "
          "gathered before each use. Same bits where a rank has one micro-batch a step");
    v.section("gather", self.gather, "How weights reach all ranks");
    v.section("reduce", self.reduce, "How gradients are summed over ranks");
    v.section("optimizer", self.optimizer, "The update rule and its schedule");
    v.section("parallel", self.parallel, "Which rank computes where");
    v.section("comm", self.comm, "Communication");
    v.section("checkpoint", self.checkpoint, "The run directory and what is saved there");
    v.section("debug", self.debug, "Checks and traces");
    v.section("proof", self.proof, "Other ways to the same bits, for proofs and measurements");
  }

  static std::span<const OtherName> other_names();

  bool operator==(const RunConfig&) const = default;
};

/// Fills every derived key that the deck left open and that follows from the other keys. Open stay run.threads, which
/// depends on the machine; data.root, on the deck's folder; and comm.timeout_s, on how long steps take. So may
/// model.vocab with token files, and model.head_dim and rope_dim if heads does not divide hidden.
void derive(RunConfig& config);

/// Contradictions of a derived config that do not depend on machine or rank count, in the order of the deck; empty:
/// none.
std::vector<Finding> check(const RunConfig& config);

/// Advice on values that others contradict; effects.hpp: on keys without effect.
std::vector<Finding> advise(const RunConfig& config);

}  // namespace tessera
