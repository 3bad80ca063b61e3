#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/config/batch_advice.hpp"
#include "core/config/config.hpp"
#include "core/config/treatments.hpp"
#include "kernels/base/index.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

using Findings = std::vector<Finding>;

// False for 0: configs are checked even if some keys have been refused and are still 0, to report all errors at once.
bool divides(std::int64_t part, std::int64_t whole) { return part > 0 && whole % part == 0; }

void check_attention(const ModelConfig& model, Findings& found) {
  if (!model.head_dim.known())
    found.push_back({{"model.heads", "model.hidden", "model.head_dim"},
                     fmt::format("{} heads do not divide hidden {}: change one of them, or give model.head_dim",
                                 model.heads, model.hidden)});
  else if (model.position == Position::rotary && model.rope_dim > model.head_dim)
    found.push_back({{"model.rope_dim", "model.head_dim"},
                     fmt::format("{} of a head's {} elements cannot be turned: use at most head_dim, or leave it out",
                                 model.rope_dim.get(), model.head_dim.get())});
  else if (model.position == Position::rotary && model.rope_dim % 2 != 0 && model.rope_dim != model.head_dim)
    found.push_back({{"model.rope_dim", "model.position"},
                     fmt::format("{} is odd, and position rotary turns pairs: use {}", model.rope_dim.get(),
                                 model.rope_dim + 1)});
  else if (model.position == Position::rotary && model.rope_dim % 2 != 0)
    found.push_back({{"model.head_dim", "model.position", "model.heads", "model.hidden"},
                     fmt::format("{} is odd, and position rotary turns pairs: make it even, or turn fewer of them by "
                                 "model.rope_dim",
                                 model.head_dim.get())});
  if (const auto& scaling = model.rope_scaling; scaling && scaling->low_freq_factor >= scaling->high_freq_factor)
    found.push_back({{"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
                     fmt::format("{} is not below high_freq_factor {}", scaling->low_freq_factor,
                                 scaling->high_freq_factor)});
  if (!divides(model.kv_heads, model.heads))
    found.push_back({{"model.kv_heads", "model.heads"},
                     fmt::format("{} does not divide heads {}", model.kv_heads.get(), model.heads)});
}

/// All divisors of n, ascending.
std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t i = 1; i * i <= n; ++i) {
    if (n % i != 0) continue;
    small.push_back(i);
    if (i * i != n) large.insert(large.begin(), n / i);
  }
  small.insert(small.end(), large.begin(), large.end());
  return small;
}

/// A list for messages: "1, 2 or 4".
std::string one_of(const std::vector<std::int64_t>& numbers) {
  if (numbers.size() == 1) return fmt::format("{}", numbers.front());
  return fmt::format("{} or {}", fmt::join(numbers.begin(), std::prev(numbers.end()), ", "), numbers.back());
}

/// Groups that a router chooses first.
void check_groups(const MoeConfig& moe, Findings& found) {
  if (!divides(moe.groups, moe.experts)) {
    found.push_back({{"model.moe.groups", "model.moe.experts"},
                     fmt::format("{} does not divide {} experts, of which each group has as many: use {}", moe.groups,
                                 moe.experts, one_of(divisors(moe.experts)))});
  } else if (moe.top_groups > moe.groups) {
    found.push_back({{"model.moe.top_groups", "model.moe.groups"},
                     fmt::format("{} of {} groups: at most all of them", moe.top_groups.get(), moe.groups)});
  } else if (const std::int64_t each = moe.experts / moe.groups; moe.top_groups * each < moe.top_k) {
    found.push_back({{"model.moe.top_groups", "model.moe.groups", "model.moe.top_k"},
                     fmt::format("{} groups of {} experts do not hold the {} that a token visits: use {} or more",
                                 moe.top_groups.get(), each, moe.top_k, ceil_div(moe.top_k, each))});
  }
}

void check_experts(const ModelConfig& model, const MoeConfig& moe, Findings& found) {
  if (moe.top_k > moe.experts)
    found.push_back({{"model.moe.top_k", "model.moe.experts"},
                     fmt::format("{} of {} experts: at most all of them", moe.top_k, moe.experts)});
  else if (moe.experts > 0)
    check_groups(moe, found);
  if (model.layers > 0 && moe.blocks().among(model.layers) == 0)
    found.push_back({{moe.first_dense >= model.layers ? "model.moe.first_dense" : "model.moe.every", "model.layers"},
                     fmt::format("leaves none of {} layers with experts: use a smaller one, or leave model.moe out",
                                 model.layers)});
  if (moe.shared_gate && moe.shared_ffn == 0)
    found.push_back({{"model.moe.shared_gate", "model.moe.shared_ffn"},
                     "there is no shared expert whose answer it could multiply: give shared_ffn its width, or leave "
                     "the gate out"});
}

void check_model(const ModelConfig& model, DataKind data, Findings& found) {
  check_attention(model, found);
  if (!model.vocab.known())
    found.push_back({{"model.vocab", "data.kind", "data.tokenizer"},
                     "missing: token files do not say how large their vocabulary is; give it, or data.tokenizer"});
  else if (data == DataKind::text && model.vocab < 256)
    found.push_back({{"model.vocab", "data.kind"},
                     fmt::format("{} entries cannot hold the 256 bytes of data.kind text", model.vocab.get())});
  if (model.moe) check_experts(model, *model.moe, found);
}

void check_mixture(const DataConfig& data, Findings& found) {
  if (data.mixture.size() != data.files.size())
    found.push_back({{"data.mixture", "data.files"},
                     fmt::format("is of length {}, and data.files of length {}: give each pattern its weight",
                                 data.mixture.size(), data.files.size())});
  const double sum = std::accumulate(data.mixture.begin(), data.mixture.end(), 0.0);
  if (const double least = std::ranges::min(data.mixture); least < 1e-6 * sum)
    found.push_back(
        {{"data.mixture"},
         fmt::format("{} is less than a millionth of the sum, {}: give more, or leave that corpus out", least, sum)});
  if (data.eval_fraction > 0.0)
    found.push_back({{"data.eval_fraction", "data.mixture"},
                     fmt::format("keeps a share of {} of one corpus for evaluation; a mixture is evaluated on "
                                 "data.eval_files",
                                 data.eval_fraction.get())});
}

void check_data(const DataConfig& data, Findings& found) {
  if (data.kind == DataKind::text && !data.tokenizer.empty())
    found.push_back({{"data.tokenizer", "data.kind"},
                     "is of no use with data.kind text, whose bytes are tokens: make token files of the text "
                     "(examples/prepare_data) and use data.kind tokens"});
  if (data.kind == DataKind::text && data.loss_mask)
    found.push_back({{"data.loss_mask", "data.kind"},
                     "needs data.kind tokens: prepare.py --chat writes token files, and which tokens are answers"});
  if (!data.mixture.empty())
    check_mixture(data, found);
  else if (!data.eval_files.empty() && data.eval_fraction > 0.0)
    found.push_back({{"data.eval_fraction", "data.eval_files"},
                     fmt::format("keeps a share of {} of the files for evaluation, and eval_files are for it: leave "
                                 "one of them out",
                                 data.eval_fraction.get())});
}

/// Counts of slots are sums in fp32, exact below 2^24. A bias compares them with an expert's even share of a step; a
/// load is one itself, of at most all tokens.
void check_counts(const RunConfig& config, Findings& found) {
  const auto& moe = config.model.moe;
  if (!moe || moe->experts <= 0) return;
  constexpr double most = 1 << 24;
  const double tokens = static_cast<double>(config.batch.global) * static_cast<double>(config.model.seq_len);
  const double share = tokens * static_cast<double>(moe->top_k) / static_cast<double>(moe->experts);
  if (moe->bias && share >= most)
    found.push_back({{"model.moe.bias", "batch.global", "model.seq_len", "model.moe.top_k", "model.moe.experts"},
                     fmt::format("an expert's even share of a step is {:.3g} tokens, and they are counted exactly "
                                 "below {:g} alone: use a smaller batch, more experts, or no bias",
                                 share, most)});
  if (moe->balance_over == BalanceOver::batch && tokens >= most)
    found.push_back({{"model.moe.balance_over", "batch.global", "model.seq_len"},
                     fmt::format("is batch, and a step's {:.3g} tokens are counted exactly below {:g} alone: use a "
                                 "smaller batch, or balance_over sequence",
                                 tokens, most)});
}

/// Refuses sizes whose products would overflow 64 bits; no machine could hold such a model.
void check_size(const RunConfig& config, Findings& found) {
  constexpr double most = 1e15;
  const ModelConfig& m = config.model;
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double head_dim = m.head_dim.known() ? real(m.head_dim) : 0, vocab = m.vocab.known() ? real(m.vocab) : 0;
  const double heads = (2 * real(m.heads) + 2 * real(m.kv_heads)) * head_dim, inner = 3 * real(m.ffn);
  const double mixtures = m.moe ? real(m.moe->blocks().among(m.layers)) : 0, dense = real(m.layers) - mixtures;
  const double expert = m.moe ? 3 * real(m.moe->ffn) : 0, shared = m.moe ? 3 * real(m.moe->shared_ffn) : 0;
  const double experts = m.moe ? real(m.moe->experts) : 0, visited = m.moe ? real(m.moe->top_k) : 0;
  const double held = dense * inner + mixtures * (expert * experts + shared);
  const double parameters = real(m.hidden) * (real(m.layers) * heads + held) + 2 * vocab * real(m.hidden);
  if (parameters > most)
    found.push_back({{"model.hidden", "model.layers", "model.ffn", "model.heads", "model.vocab", "model.moe.experts"},
                     fmt::format("{:.1g} parameters are more than {:g}, which no machine holds", parameters, most)});
  const double of_token = real(m.layers) * (8 * real(m.hidden) + heads) + dense * inner +
                          mixtures * (expert * visited + shared) + vocab;
  if (const double numbers = real(config.batch.micro) * real(m.seq_len) * of_token; numbers > most)
    found.push_back({{"batch.micro", "model.seq_len", "model.hidden", "model.layers", "model.ffn", "model.heads"},
                     fmt::format("{:.1g} numbers in a micro-batch are more than {:g}, which no machine holds", numbers,
                                 most)});
}

void check_schedule(const OptimizerConfig& optimizer, std::int64_t steps, Findings& found) {
  if (optimizer.min_lr > optimizer.lr)
    found.push_back({{"optimizer.min_lr", "optimizer.lr"},
                     fmt::format("{} is above lr {}", optimizer.min_lr, optimizer.lr)});
  if (optimizer.schedule != RateSchedule::wsd) return;
  if (optimizer.decay_steps == 0)
    found.push_back({{"optimizer.decay_steps", "optimizer.schedule"}, "missing: schedule wsd needs it"});
  else if (optimizer.warmup_steps + optimizer.decay_steps > steps)
    found.push_back({{"optimizer.decay_steps", "optimizer.warmup_steps", "optimizer.schedule", "run.steps"},
                     fmt::format("warm-up {} and decay {} are longer than the run of {} steps", optimizer.warmup_steps,
                                 optimizer.decay_steps, steps)});
}

/// Contradictions that concern full sharding only.
void check_full_sharding(const RunConfig& config, Findings& found) {
  if (config.precision.primary_weights == PrimaryWeights::quantized && config.proof.wire == GatherWire::bf16)
    found.push_back({{"proof.wire", "sharding", "precision.primary_weights"},
                     "is bf16, and full sharding gathers what it keeps, which is codes: use wire auto, primary_weights "
                     "bf16, or sharding optimizer"});
  if (config.checkpoint.quantized)
    found.push_back({{"checkpoint.quantized", "sharding"},
                     "is true, and with sharding full no rank holds whole weights: leave it out and run `tessera "
                     "quantize` on model.h5, or use sharding optimizer"});
  if (!coded_weights(config).empty() && config.proof.cuts == GatherCuts::flat)
    found.push_back({{"proof.cuts", "sharding"},
                     "is flat, and full sharding cuts what a recipe quantizes between rows of blocks: use cuts tile, "
                     "or sharding optimizer"});
}

void check_gather(const RunConfig& config, Findings& found) {
  const bool quantized = config.precision.primary_weights == PrimaryWeights::quantized;
  if (!quantized && config.proof.wire == GatherWire::quantized)
    found.push_back({{"proof.wire", "precision.primary_weights"},
                     "is quantized, and weights that are held in bf16 have no codes that could travel: use wire auto, "
                     "or primary_weights quantized"});
  if (config.proof.staging != GatherStaging::automatic && !stages_values(config))
    found.push_back({{"proof.staging", "proof.wire", "precision.primary_weights"},
                     fmt::format("is {}, and nothing is staged: only weights that are held quantized and travel as "
                                 "bf16 are; use auto",
                                 name_of(config.proof.staging))});
  if (config.sharding == Sharding::full) return check_full_sharding(config, found);
  if (config.gather.granularity != GatherGranularity::automatic)
    found.push_back({{"gather.granularity", "sharding"},
                     fmt::format("is {}, and weights are gathered for use only where sharding is full: use auto, or "
                                 "sharding full",
                                 name_of(config.gather.granularity))});
  if (config.proof.cuts == GatherCuts::flat && ships_both_copies(config))
    found.push_back({{"proof.cuts", "proof.wire"},
                     "is flat, and codes of mxfp8 travel by whole rows of blocks: use cuts tile, or wire bf16"});
}

void check_experts(const RunConfig& config, Findings& found) {
  const std::int64_t expert = config.parallel.expert;
  const auto& moe = config.model.moe;
  if (expert > 1 && !moe)
    found.push_back({{"parallel.expert", "model.moe"},
                     fmt::format("{} ranks would hold the experts between them, and the model has none: use 1, or give "
                                 "model.moe",
                                 expert)});
  else if (moe && moe->experts > 0 && !divides(expert, moe->experts))
    found.push_back({{"parallel.expert", "model.moe.experts"},
                     fmt::format("{} does not divide {} experts, of which each rank of a group holds as many: use {}",
                                 expert, moe->experts, one_of(divisors(moe->experts)))});
}

/// Why weights have no codes, where `key` asks for them.
std::string no_codes_text(const RunConfig& config, const std::string& key) {
  if (!quantizes(config)) return "recipe bf16 quantizes no weight: leave " + key + " out, or choose another recipe";
  return "no weight is held as codes, since none has one format for both of its products: leave " + key +
         " out, or give weights one format";
}

void check_precision(const RunConfig& config, Findings& found) {
  const PrecisionConfig& precision = config.precision;
  const bool plain = coded_weights(config).empty();
  check_treatments(config, found);
  if (plain && precision.primary_weights == PrimaryWeights::quantized)
    found.push_back({{"precision.primary_weights", "precision.recipe"},
                     no_codes_text(config, "primary_weights")});
  if (precision.quantize_head && config.model.tied_head)
    found.push_back({{"precision.quantize_head", "model.tied_head"},
                     "a tied head is the token embedding, which stays in bf16: use tied_head false, or leave it out"});
  if (precision.bf16_first + precision.bf16_last > config.model.layers)
    found.push_back({{"precision.bf16_first", "precision.bf16_last", "model.layers"},
                     fmt::format("{} first and {} last blocks are more than the {} there are", precision.bf16_first,
                                 precision.bf16_last, config.model.layers)});
}

void check_checkpoint(const RunConfig& config, Findings& found) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.quantized && coded_weights(config).empty())
    found.push_back({{"checkpoint.quantized", "precision.recipe"}, no_codes_text(config, "quantized")});
  if (const std::vector<FormatId> formats = coded_weights(config); checkpoint.quantized && formats.size() > 1)
    found.push_back({{"checkpoint.quantized", "precision.layers", "precision.recipe"},
                     fmt::format("is true, and weights are held in {} formats, {} and {} among them: the file has one; "
                                 "leave quantized out and run `tessera quantize` on model.h5",
                                 formats.size(), traits_of(formats[0]).name, traits_of(formats[1]).name)});
  if (checkpoint.async && checkpoint.io == CheckpointIo::mpio)
    found.push_back({{"checkpoint.io", "checkpoint.async"},
                     "is mpio, and no thread beside training may use MPI: use io direct, or leave io or async out"});
  if (checkpoint.async && checkpoint.quantized)
    found.push_back({{"checkpoint.quantized", "checkpoint.async"},
                     "is made by the ranks together while training waits: leave quantized or async out"});
}

}  // namespace

std::string batch_advice(const BatchConfig& batch, std::int64_t ranks) {
  const bool shared = batch.global > 0 && batch.global % ranks == 0;
  const std::string micro = shared ? "use batch.micro " + one_of(divisors(batch.global / ranks)) + ", or "
                                   : "no batch.micro divides it: use ";
  if (batch.micro <= 0) return micro;  // a refused key, reported elsewhere
  const std::int64_t unit = ranks * batch.micro, below = batch.global / unit * unit;
  return micro + "batch.global " + one_of(below > 0 ? std::vector{below, below + unit} : std::vector{unit});
}

Findings check(const RunConfig& config) {
  Findings found;
  check_precision(config, found);
  check_model(config.model, config.data.kind, found);
  check_size(config, found);
  check_counts(config, found);
  check_schedule(config.optimizer, config.run.steps, found);
  check_gather(config, found);
  check_checkpoint(config, found);
  check_experts(config, found);
  if (config.recompute.mode == RecomputeMode::selective && config.recompute.modules.get().empty())
    found.push_back({{"recompute.modules", "recompute.mode"}, "mode selective needs at least one module"});
  if (!divides(config.batch.micro, config.batch.global))
    found.push_back({{"batch.global", "batch.micro"},
                     fmt::format("{} is no multiple of micro {}: {}", config.batch.global, config.batch.micro,
                                 batch_advice(config.batch, 1))});
  if (config.sample.tokens > 0 && config.data.kind != DataKind::text && config.data.tokenizer.empty())
    found.push_back({{"sample.tokens", "data.kind", "data.tokenizer"}, "needs data.tokenizer, or data.kind text"});
  check_data(config.data, found);
  if (!config.debug.profile.empty() && config.debug.profile == config.debug.trace)
    found.push_back({{"debug.profile", "debug.trace"}, "is the file of debug.trace too: name another"});
  if (config.sample.tokens > 0 && config.sample.prompt.empty())
    found.push_back({{"sample.prompt", "sample.tokens"}, "is empty: generation starts from at least one byte"});
  return found;
}

Findings advise(const RunConfig& config) {
  Findings found;
  advise_treatments(config, found);
  if (config.proof.wire == GatherWire::bf16 && config.precision.primary_weights == PrimaryWeights::bf16)
    found.push_back({{"proof.wire", "precision.primary_weights"},
                     "weights that are held in bf16 travel in it anyway"});
  if (config.model.qkv_bias && config.model.bias)
    found.push_back({{"model.qkv_bias", "model.bias"}, "bias true gives one to every linear layer anyway"});
  if (config.sample.every_steps > 0 && config.sample.tokens == 0)
    found.push_back({{"sample.every_steps", "sample.tokens"}, "no sample: sample.tokens is 0"});
  if (config.eval.every_steps > 0 && config.data.eval_fraction == 0.0 && config.data.eval_files.empty())
    found.push_back({{"eval.every_steps", "data.eval_fraction"},
                     "no evaluation: data.eval_fraction 0 keeps no windows for it, and there are no data.eval_files"});
  if (config.optimizer.warmup_steps >= config.run.steps)
    found.push_back({{"optimizer.warmup_steps", "run.steps"},
                     fmt::format("the run of {} steps ends within warm-up", config.run.steps)});
  if (config.parallel.expert > 1 && config.parallel.expert_room > ample_room(config))
    found.push_back(
        {{"parallel.expert_room", "parallel.expert", "model.moe.top_k"},
         fmt::format("{} is more than can arrive: {} is enough for any routing, and memory is planned for no more",
                     config.parallel.expert_room.get(), ample_room(config))});
  if (config.model.moe && config.model.moe->top_k == 1 && config.model.moe->renormalize)
    found.push_back({{"model.moe.renormalize", "model.moe.top_k"},
                     "with top_k 1 every weight is 1 and the router learns from its own losses alone"});
  return found;
}

}  // namespace tessera
