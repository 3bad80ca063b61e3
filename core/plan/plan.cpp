#include "core/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/config/recipe_schedule.hpp"
#include "core/config/treatments.hpp"
#include "core/data/sampler.hpp"
#include "core/optim/muon.hpp"
#include "core/plan/recorder.hpp"
#include "core/recipe/recipe.hpp"
#include "core/step/debug_memory.hpp"
#include "core/step/quantizer_statistics.hpp"
#include "core/step/tensor_capture.hpp"
#include "core/step/decoder.hpp"
#include "core/step/engine.hpp"

namespace tessera {

namespace {

GatherUnit gather_unit(const RunConfig& config) {
  if (config.sharding == Sharding::optimizer) return GatherUnit::bucket;
  return gathers_modules(config) ? GatherUnit::module : GatherUnit::block;  // mutation: blocks_in_place_of_modules
}

LayoutRules layout_rules(const RunConfig& config, const Ranks& ranks) {
  const double elements = config.reduce.bucket_mib * 1024 * 1024 / static_cast<double>(size_of(DType::f32));
  return {ranks.world.size, ranks.expert_data.size,
          std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(elements))),
          config.optimizer.matrices == MatrixRule::muon ? OwnerKind::whole_matrix : OwnerKind::element_sharded,
          config.proof.cuts, gather_unit(config), ranks.sharding.size, config.reduce.wire, config.reduce.keep};
}

BalanceSettings balance_of(const RunConfig& config) {
  const auto& moe = config.model.moe;
  if (!moe) return {};
  const std::int64_t slots = config.batch.global * config.model.seq_len * moe->top_k;
  return {static_cast<float>(moe->bias_rate), static_cast<double>(slots)};
}

StepKey key_of(const StepMemory& memory) { return {0, memory.step()}; }

/// A dry run of one rank's model, on a measuring device and a mesh that moves nothing.
struct DryModel {
  DryModel(const RunPlan& plan, const ParamRegistry& registry, DryRows rows)
      : recorder(registry, plan.sync.weights),
        mesh(planning_mesh(plan.ranks)),
        memory(device, plan.ranks.world, plan.sizes, 0) {
    if (const auto& moe = plan.model.shape().moe; moe && moe->group.size > 1)
      exchange.emplace(device, mesh.experts(), moe->experts, rows);
    if (exchange && plan.model.shape().moe->by_peers()) exchange->reach({});
  }
  DryModel(const DryModel&) = delete;
  DryModel& operator=(const DryModel&) = delete;

  Pass pass(GradientSink* gradients) {
    return {device.compute(), recorder, gradients, arena, memory.sums(0), nullptr, key_of(memory),
            exchange ? &*exchange : nullptr};
  }
  MicroBatch micro_batch(std::int64_t sequences) const { return memory.micro_batch(0, sequences, 1); }

  Device device{Device::Kind::measuring};
  UsageRecorder recorder;
  Arena arena;
  Mesh mesh;
  StepMemory memory;
  std::optional<RowExchange> exchange;
};

/// FLOPs of one micro-batch with the recomputation of `keep`, assuming even routing of rows to experts. Those of the
/// model without a recipe, whose blocks would add rows of padding to each expert's.
double flops(const RunPlan& plan, const KeepRules& keep) {
  GptShape shape = plan.model.shape();
  shape.keep = keep;
  if (shape.moe) shape.moe->rows = ExpertRows::exchange;  // as many rows as there is room for are not multiplied
  ParamRegistry registry({treatment_rules(plan.config).plain()});
  const Gpt model(registry, shape);
  DryModel dry(plan, registry, DryRows::even);
  model.gradient(dry.pass(&dry.recorder), dry.micro_batch(plan.sizes.micro));
  return dry.device.tape().flops;
}

/// Runs one micro-batch over a measuring arena, which gives order of weights, contributions, activation memory and
/// FLOPs.
void run_dry(RunPlan& plan) {
  DryModel dry(plan, plan.registry, DryRows::most);
  {
    const Arena::Frame frame(dry.arena);
    TensorCapture capture(plan.config.debug.tensors, plan.sizes);  // takes memory of the arena
    FactorObserver* const observer = &capture;
    Pass pass = dry.pass(&dry.recorder);
    if (!plan.config.debug.tensors.step.empty()) pass.observers = {&observer, 1};
    plan.model.gradient(pass, dry.micro_batch(plan.sizes.micro));
  }
  plan.usage.training = dry.recorder.take_accesses();
  plan.usage.contributions = dry.recorder.take_contributions();
  const auto micro_batches = static_cast<double>(plan.sizes.micro_batches());
  plan.flops_per_step = flops(plan, plan.model.shape().keep) * micro_batches;
  plan.model_flops_per_step = flops(plan, {}) * micro_batches;
  {
    const Arena::Frame frame(dry.arena);
    plan.model.evaluate(dry.pass(nullptr), dry.micro_batch(plan.sizes.micro));
  }
  plan.usage.evaluation = dry.recorder.take_accesses();
  {
    const Arena::Frame frame(dry.arena);
    const Tensor logits = dry.arena.keep(DType::f32, {plan.model.shape().vocabulary});
    plan.model.next_logits(dry.pass(nullptr), dry.micro_batch(1).ids, 0, logits);
  }
  plan.sizes.activation_bytes = dry.arena.peak();
  plan.sizes.workspaces = dry.device.compute().workspaces();
}

/// Makes the schedule of weights and gradients from the recorded usage.
void make_schedule(RunPlan& plan) {
  plan.schedule = schedule_of(plan.sync_inputs());
  Problems problems;
  for (const std::string& fault : check(plan.schedule, plan.sync_inputs()))
    problems.add(Exit::internal, "the schedule of weights and gradients: " + fault);
  problems.raise();
}

/// Appends a line to the budget, or counts one more of an equal operation that belongs to no bucket group.
void add_cost(std::vector<CollectiveCost>& costs, const Record& record) {
  const auto same = std::ranges::find_if(costs, [&](const CollectiveCost& cost) {
    return record.group < 0 && cost.group < 0 && cost.collective == record.collective && cost.label == record.label &&
           cost.bytes == record.bytes;
  });
  if (same != costs.end()) ++same->count;
  else costs.push_back({record.group, record.collective, record.bytes, 1, record.label});
}

/// Sets the memory by category: allocations on the measuring device, plus the plan's arena and workspaces.
void add_memory(RunPlan& plan, const Device& device) {
  plan.memory = device.memory();
  plan.memory[static_cast<std::size_t>(Category::activations)] =
      round_up(plan.sizes.activation_bytes, Arena::alignment);
  for (const Workspace& place : plan.sizes.workspaces)
    plan.memory[static_cast<std::size_t>(Category::libraries)] += round_up(place.bytes, Arena::alignment);
}

/// Runs the whole step dry, on a measuring device and a mesh that only records operations.
void measure(RunPlan& plan) {
  Device device(Device::Kind::measuring);
  std::vector<Record> records;
  Mesh mesh = planning_mesh(plan.ranks);
  mesh.wrap([&](std::unique_ptr<Communicator> one) { return recording(std::move(one), records); });
  Engine engine(device, plan, mesh);
  engine.initialise();
  engine.sync().unshard_all(engine.stream());
  records.clear();
  engine.step({{}, {}, plan.sizes.local()}, {});  // no tokens: a dry stream reads none
  allocate_for_debug(device, plan, plan.config.debug);
  if (plan.config.precision.statistics_every > 0) const QuantizerStatistics counted(device, plan);
  engine.sync().unshard_all(engine.stream());
  plan.sizes.workspaces = engine.stream().workspaces();  // includes those of run_dry()
  add_memory(plan, device);
  for (const Record& record : records) add_cost(plan.collectives, record);
  for (const auto& [work, none] : engine.stream().library<LibraryChoices>().of) plan.library_work.push_back(work);
  plan.saved = engine.fresh_state().tensors;
  for (StateTensor& tensor : plan.saved) tensor.ranges.clear();  // memory of this dry run
  plan.routes = engine.stream().library<gemm::Routes>();
}

/// Number of elements of a rank's slices of some buckets.
std::int64_t owned(const ParamLayout& layout, const std::vector<BucketId>& buckets, const Ranks& ranks) {
  std::int64_t elements = 0;
  for (BucketId b : buckets) elements += layout.buckets()[b].slice(ranks);
  return elements;
}

/// The ranks that may need most memory: the one that owns most, and the one that receives most in a reduction; of
/// equals the first. `of` is one rank among them.
std::set<int> largest_ranks(const ParamLayout& layout, const Ranks& of) {
  std::pair<std::int64_t, int> all{-1, 0}, group_of_most{-1, 0};
  for (int rank = 0; rank < of.world.size; ++rank) {
    const Ranks here = Ranks::in_world(of.world.size, rank, of.experts.size, of.sharding.size);
    std::int64_t sum = 0, most = 0;
    for (const BucketGroup& group : layout.groups()) {
      const std::int64_t elements = owned(layout, group.buckets, here);
      sum += elements;
      std::int64_t kept = 0;
      for (BucketId b : group.buckets) kept += layout.buckets()[b].shard(here);
      most = std::max(most, kept * here.of(group.processes, Level::inside).size);
    }
    if (sum > all.first) all = {sum, rank};
    if (most > group_of_most.first) group_of_most = {most, rank};
  }
  return {all.second, group_of_most.second};
}

/// Layers whose routing is recorded.
std::int64_t recorded_layers(const RunConfig& config) {
  const auto& moe = config.model.moe;
  return moe && config.routing.every_steps > 0 ? moe->blocks().among(config.model.layers) : 0;
}

/// Sizes of a step on each rank.
StepSizes sizes_of(const RunConfig& config, std::int64_t rounds) {
  const std::int64_t again = config.debug.spot_check_every > 0 ? (spot_computations - 1) * config.batch.micro : 0;
  StepSizes sizes{config.model.seq_len, config.batch.global, config.batch.micro, rounds, 0, {}, again,
                  config.data.documents == Documents::apart};
  const auto& moe = config.model.moe;
  if (!moe) return sizes;
  sizes.recorded_layers = recorded_layers(config);
  sizes.experts = moe->experts;
  sizes.mixtures = moe->blocks().among(config.model.layers);
  sizes.top_k = moe->top_k;
  sizes.given = !config.routing.replay.empty();
  const bool probes = sizes.recorded_layers > 0 && config.eval.every_steps > 0;
  sizes.kept_rounds = !config.routing.record.empty() ? rounds : probes ? 1 : 0;
  return sizes;
}

/// The plan without the findings of a dry run.
RunPlan laid_out(const RunConfig& config, int ranks, int rank) {
  require(config.precision.schedule.empty(), "resolve", "plans one segment of a schedule");
  Problems problems;
  for (const Finding& finding : refusals(config, ranks))
    problems.add(Exit::deck, finding.keys.front() + ": " + finding.text);
  problems.raise();
  const Ranks here = Ranks::in_world(ranks, rank, static_cast<int>(config.parallel.expert),
                                     ranks / static_cast<int>(config.parallel.sharding_group.of(ranks)));
  ParamRegistry registry(treatment_rules(config));
  Gpt model(registry, GptShape::from(config, here.experts));
  if (config.optimizer.matrices == MatrixRule::muon) problems_with_muon(registry).raise();
  ParamLayout layout = ParamLayout::build(registry, layout_rules(config, here));
  const BatchPlan batch(config.batch.global, config.batch.micro, ranks);
  SyncRules sync{config.proof.gather_overlap ? Overlap::on : Overlap::off,
                 config.proof.reduce_overlap ? Overlap::on : Overlap::off,
                 static_cast<int>(batch.rounds()),
                 config.reduce.order,
                 {config.precision.primary_weights, config.proof.wire, config.proof.staging, config.sharding},
                 static_cast<int>(batch.idle_ranks()),
                 config.reduce.rounding};
  // Gradients that come and go with each micro-batch leave no memory in which bf16 could wait for its gather.
  if (sync.reduces_each_micro_batch()) sync.weights.staging = GatherStaging::ring;
  return {{here,
           config.run.seed,
           config.precision.seed,
           config.proof.graph,
           std::move(registry),
           std::move(model),
           std::move(layout),
           {},
           sync,
           {},
           config.optimizer,
           balance_of(config),
           sizes_of(config, batch.rounds())},
          config};
}

/// The config of a run that only generates text: a batch of one sequence a rank, no training.
RunConfig only_generating(const RunConfig& config, int ranks) {
  RunConfig plain;
  plain.run.seed = config.run.seed;
  plain.model = config.model;
  if (plain.model.moe) plain.model.moe->weights = ExpertWeights::single;
  plain.precision.compute = config.precision.compute;
  plain.data.kind = DataKind::tokens;
  plain.batch = {.global = ranks, .micro = 1};
  derive(plain);
  return plain;
}

/// Runs passes of every size that a Decoder makes, to record the order of weights, memory and workspaces.
void decode_dry(RunPlan& plan) {
  Device device(Device::Kind::measuring);
  UsageRecorder recorder(plan.registry, plan.sync.weights);
  Arena arena;
  Sequence sequence = plan.model.sequence(device.compute(), arena, plan.sizes.length);
  const Pass pass{device.compute(), recorder, nullptr, arena};
  const Tensor ids = device.allocate(Category::batch, DType::i32, {Decoder::most_at_once});
  const Tensor logits = device.allocate(Category::batch, DType::f32, {plan.model.shape().vocabulary});
  for (std::int64_t some = 1; some <= std::min(Decoder::most_at_once, plan.sizes.length); some *= 2) {
    sequence.length = plan.sizes.length - some;
    plan.model.extend(pass, sequence, ids.flat(0, some), logits);
  }
  plan.usage.evaluation = recorder.take_accesses();
  plan.usage.contributions = recorder.take_contributions();
  plan.sizes.activation_bytes = arena.peak();
  plan.sizes.workspaces = device.compute().workspaces();
}

}  // namespace

std::vector<Finding> unnamed_tensors(const RunConfig& config, int ranks) {
  std::vector<std::string> none = config.debug.tensors.names;
  for (std::size_t i = 0; i < segments(config) && !none.empty(); ++i)
    none = patterns_of_nothing(none, laid_out(config_of(config, i), ranks, 0).registry);
  std::vector<Finding> findings;
  for (const std::string& pattern : none)
    findings.push_back({{"debug.tensors.names"},
                        fmt::format("{:?} is the name of no tensor of this model: use MATRIX/WHAT, as "
                                    "layers.0.mlp.down.weight/gradient (docs/tensors.md)",
                                    pattern)});
  return findings;
}

RunPlan resolve(const RunConfig& config, int ranks, int rank) {
  RunPlan plan = laid_out(config, ranks, rank);
  run_dry(plan);
  make_schedule(plan);
  measure(plan);
  return plan;
}

RunPlan resolve_decoding(const RunConfig& config, int ranks, int rank, std::int64_t capacity) {
  RunPlan plan = laid_out(only_generating(config, ranks), ranks, rank);
  plan.sync.micro_batches = 0;
  plan.sizes.length = capacity;
  decode_dry(plan);
  make_schedule(plan);
  Device device(Device::Kind::measuring);
  Mesh mesh = planning_mesh(plan.ranks);
  Decoder(device, plan, mesh).initialise([](StateDict&) {});
  add_memory(plan, device);
  return plan;
}

RunPlan resolve_largest(const RunConfig& config, int ranks) {
  RunPlan largest = resolve(config, ranks, 0);
  for (int rank : largest_ranks(largest.layout, largest.ranks)) {
    if (rank == 0) continue;
    RunPlan other = resolve(config, ranks, rank);
    if (total(other.memory) > total(largest.memory)) largest = std::move(other);
  }
  return largest;
}

std::optional<GranularityPeaks> granularity_peaks(const RunConfig& config, int ranks) {
  if (config.sharding != Sharding::full) return std::nullopt;
  const auto bytes = [&](GatherGranularity granularity) {
    RunConfig asked = config;
    asked.gather.granularity = granularity;
    return total(resolve_largest(asked, ranks).memory);
  };
  return GranularityPeaks{bytes(GatherGranularity::block), bytes(GatherGranularity::module)};
}

}  // namespace tessera
