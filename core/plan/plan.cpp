#include "core/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/config/batch_advice.hpp"
#include "core/data/sampler.hpp"
#include "core/optim/muon.hpp"
#include "core/plan/recorder.hpp"
#include "core/step/debug_memory.hpp"
#include "core/step/quantizer_statistics.hpp"
#include "core/step/decoder.hpp"
#include "core/step/engine.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera {
namespace {

GatherUnit gather_unit(const RunConfig& config) {
  if (config.sharding == Sharding::optimizer) return GatherUnit::bucket;
  return gathers_modules(config) ? GatherUnit::module : GatherUnit::block;
}

LayoutRules layout_rules(const RunConfig& config, const Ranks& ranks) {
  const double elements = config.reduce.bucket_mib * 1024 * 1024 / static_cast<double>(size_of(DType::f32));
  return {ranks.world.size, ranks.expert_data.size,
          std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(elements))),
          config.optimizer.matrices == MatrixRule::muon ? OwnerKind::whole_matrix : OwnerKind::element_sharded,
          config.proof.cuts, gather_unit(config)};
}

FormatRules format_rules(const RunConfig& config) {
  const PrecisionConfig& precision = config.precision;
  return {recipe_of(precision).weight, static_cast<int>(precision.bf16_first),
          static_cast<int>(config.model.layers - precision.bf16_last), precision.quantize_head};
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
  DryModel(const RunPlan& plan, DryRows rows)
      : recorder(plan.registry, plan.sync.weights),
        mesh(planning_mesh(plan.ranks)),
        memory(device, plan.ranks.world, plan.sizes, 0) {
    if (const auto& moe = plan.model.shape().moe; moe && moe->group.size > 1)
      exchange.emplace(device, mesh.experts(), moe->experts, rows);
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

/// FLOPs of one micro-batch with the recomputation of `keep`, assuming even routing of rows to experts.
double flops(const RunPlan& plan, const KeepRules& keep) {
  GptShape shape = plan.model.shape();
  shape.keep = keep;
  ParamRegistry same(format_rules(plan.config));
  DryModel dry(plan, DryRows::even);
  Gpt(same, shape).gradient(dry.pass(&dry.recorder), dry.micro_batch(plan.sizes.micro));
  return dry.device.tape().flops;
}

/// Runs one micro-batch over a measuring arena, which gives order of weights, contributions, activation memory and
/// FLOPs.
void run_dry(RunPlan& plan) {
  DryModel dry(plan, DryRows::most);
  {
    const Arena::Frame frame(dry.arena);
    plan.model.gradient(dry.pass(&dry.recorder), dry.micro_batch(plan.sizes.micro));
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
/// equals the first.
std::set<int> largest_ranks(const ParamLayout& layout, int ranks, int expert) {
  std::pair<std::int64_t, int> all{-1, 0}, group_of_most{-1, 0};
  for (int rank = 0; rank < ranks; ++rank) {
    const Ranks here = Ranks::in_world(ranks, rank, expert);
    std::int64_t sum = 0, most = 0;
    for (const BucketGroup& group : layout.groups()) {
      const std::int64_t elements = owned(layout, group.buckets, here);
      sum += elements;
      most = std::max(most, elements * here.of(group.processes).size);
    }
    if (sum > all.first) all = {sum, rank};
    if (most > group_of_most.first) group_of_most = {most, rank};
  }
  return {all.second, group_of_most.second};
}

/// Refuses batches that these ranks cannot share.
void add_batch_findings(const RunConfig& config, int ranks, std::vector<Finding>& findings) {
  const BatchConfig& batch = config.batch;
  if (batch.micro <= 0 || batch.global % batch.micro != 0) return;  // check() refuses it
  const std::int64_t micro_batches = batch.global / batch.micro, expert = config.parallel.expert;
  const bool by_batch = config.reduce.order == ReduceOrder::batch;
  if (by_batch && micro_batches < ranks)
    findings.push_back({{"batch.global", "batch.micro"},
                        fmt::format("{} sequences are {} micro-batches of {}, and each of {} ranks computes at least "
                                    "one: use at most {} ranks, or {}",
                                    batch.global, micro_batches, batch.micro, ranks, micro_batches,
                                    batch_advice(batch, ranks))});
  else if (by_batch && expert > 0 && micro_batches % expert != 0)
    findings.push_back({{"batch.global", "batch.micro", "parallel.expert"},
                        fmt::format("{} sequences are {} micro-batches of {}, and {} ranks of an expert group compute "
                                    "one each at a time: {}",
                                    batch.global, micro_batches, batch.micro, expert, batch_advice(batch, expert))});
  else if (!by_batch && micro_batches % ranks != 0)
    findings.push_back({{"batch.global", "batch.micro", "reduce.order"},
                        fmt::format("{} sequences cannot be shared by {} ranks in micro-batches of {}: {}, or "
                                    "reduce.order batch{}",
                                    batch.global, ranks, batch.micro, batch_advice(batch, ranks),
                                    micro_batches < ranks ? fmt::format(" and at most {} ranks", micro_batches) : "")});
  if (by_batch && micro_batches > ranks && config.proof.staging == GatherStaging::alias_grads)
    findings.push_back({{"proof.staging", "reduce.order"},
                        "is alias_grads, and order batch keeps no whole gradients where a rank has several "
                        "micro-batches: use staging ring or auto"});
}

/// Refuses matrices whose shape the recipe's format does not take, naming each dataset once, in the first block with
/// it.
void add_matrix_findings(const RunConfig& config, const Recipe& recipe, std::vector<Finding>& findings) {
  ParamRegistry registry(format_rules(config));
  Gpt(registry, GptShape::from(config));
  int first_block = -2;
  for (const Dataset& dataset : registry.datasets()) {
    const ParamSpec& spec = registry[dataset.params.front()];
    if (!spec.format.codes) continue;
    if (first_block == -2) first_block = spec.block;
    const bool repeated = spec.block != first_block && spec.block >= 0;
    if (repeated || (spec.member[0] % recipe.matrix == 0 && spec.member[1] % recipe.matrix == 0)) continue;
    findings.push_back({{"precision.recipe", "model.hidden", "model.ffn", "model.heads"},
                        fmt::format("{} takes matrices whose sides are multiples of {}, and {} is [{}, {}]: change the "
                                    "model's sizes, or use recipe bf16",
                                    recipe.name, recipe.matrix, spec.canonical.name, spec.member[0], spec.member[1])});
  }
}

/// Refuses numbers of tokens in a micro-batch that the recipe does not take.
void add_row_findings(const RunConfig& config, const Recipe& recipe, std::vector<Finding>& findings) {
  const std::int64_t micro = config.batch.micro, length = config.model.seq_len, tokens = micro * length;
  if (micro <= 0 || length <= 0 || tokens % recipe.rows == 0) return;
  const std::int64_t unit = recipe.rows / std::gcd(length, recipe.rows), below = micro / unit * unit;
  const std::int64_t of_length = recipe.rows / std::gcd(micro, recipe.rows), shorter = length / of_length * of_length;
  const auto nearest = [](std::int64_t low, std::int64_t step) {
    return low > 0 ? fmt::format("{} or {}", low, low + step) : fmt::format("{}", low + step);
  };
  findings.push_back({{"batch.micro", "model.seq_len", "precision.recipe"},
                      fmt::format("{} takes micro-batches of a multiple of {} tokens, and {} x seq_len {} is {}: use "
                                  "batch.micro {}, or model.seq_len {}",
                                  recipe.name, recipe.rows, micro, length, tokens, nearest(below, unit),
                                  nearest(shorter, of_length))});
}

/// Refusals by the recipe's formats, for a model that is otherwise valid.
void add_recipe_findings(const RunConfig& config, std::vector<Finding>& findings) {
  const Recipe& recipe = recipe_of(config.precision);
  if (!recipe.activation) return;
  const auto of_model = [](const Finding& finding) {
    return std::any_of(finding.keys.begin(), finding.keys.end(),
                       [](const std::string& key) { return key.starts_with("model.") || key == "precision.compute"; });
  };
  const bool sound = std::none_of(findings.begin(), findings.end(), of_model);
  add_row_findings(config, recipe, findings);
  if (sound) add_matrix_findings(config, recipe, findings);
}

/// Refusals of heads that this back end's attention does not take.
void add_head_findings(const ModelConfig& model, std::vector<Finding>& findings) {
  if (!model.head_dim.known() || model.head_dim.get() <= most_head_dim()) return;
  findings.push_back({{"model.head_dim", "model.heads", "model.hidden"},
                      fmt::format("heads of {} are wider than the {} that attention takes here: use more heads, or a "
                                  "smaller head_dim",
                                  model.head_dim.get(), most_head_dim())});
}

/// Refusals of expert parallelism: experts against ranks, or against the products of one rank.
void add_expert_findings(const RunConfig& config, int ranks, std::vector<Finding>& findings) {
  const std::int64_t expert = config.parallel.expert;
  if (expert > 0 && ranks % expert != 0)
    findings.push_back({{"parallel.expert"},
                        fmt::format("{} does not divide {} ranks, which form groups of so many neighbours: use a "
                                    "number that does, or other ranks",
                                    expert, ranks)});
  const auto& moe = config.model.moe;
  if (!moe || expert <= 0 || moe->weights == ExpertWeights::single || moe->experts / expert <= most_discrete_experts())
    return;
  findings.push_back({{"model.moe.experts", "model.moe.weights"},
                      fmt::format("{} discrete experts are more than the {} that a product takes here; use `weights: "
                                  "single`, which computes the same, or fewer experts on a rank",
                                  moe->experts / expert, most_discrete_experts())});
}

}  // namespace

std::vector<Finding> refusals(const RunConfig& config, int ranks) {
  std::vector<Finding> findings = check(config);
  add_batch_findings(config, ranks, findings);
  add_head_findings(config.model, findings);
  add_expert_findings(config, ranks, findings);
  add_recipe_findings(config, findings);
  return findings;
}

namespace {

/// The plan without the findings of a dry run.
RunPlan laid_out(const RunConfig& config, int ranks, int rank) {
  Problems problems;
  for (const Finding& finding : refusals(config, ranks))
    problems.add(Exit::deck, finding.keys.front() + ": " + finding.text);
  problems.raise();
  const Ranks here = Ranks::in_world(ranks, rank, static_cast<int>(config.parallel.expert));
  ParamRegistry registry(format_rules(config));
  Gpt model(registry, GptShape::from(config, here.experts));
  if (config.optimizer.matrices == MatrixRule::muon) problems_with_muon(registry).raise();
  ParamLayout layout = ParamLayout::build(registry, layout_rules(config, here));
  const BatchPlan batch(config.batch.global, config.batch.micro, ranks);
  SyncRules sync{config.proof.gather_overlap ? Overlap::on : Overlap::off,
                 config.proof.reduce_overlap ? Overlap::on : Overlap::off,
                 static_cast<int>(batch.rounds()),
                 config.reduce.order,
                 {config.precision.primary_weights, config.proof.wire, config.proof.staging, config.sharding},
                 static_cast<int>(batch.idle_ranks())};
  // Gradients that come and go with each micro-batch leave no memory in which bf16 could wait for its gather.
  if (sync.reduces_each_micro_batch()) sync.weights.staging = GatherStaging::ring;
  const std::int64_t again = config.debug.spot_check_every > 0 ? (spot_computations - 1) * config.batch.micro : 0;
  const StepSizes sizes{config.model.seq_len, config.batch.global, config.batch.micro, batch.rounds(), 0, {}, again};
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
           sizes},
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
  plain.batch = {ranks, 1};
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
  for (int rank : largest_ranks(largest.layout, ranks, largest.ranks.experts.size)) {
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
