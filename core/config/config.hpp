#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/config/choices.hpp"
#include "core/config/moe_config.hpp"
#include "core/config/rule.hpp"
#include "kernels/base/runtime.hpp"

/// What one run was asked to do, as plain structs whose members are named like the deck's keys.
///
/// visit() of a struct is the only list of its keys. It calls these functions of a visitor, which derives from
/// ConfigVisitor (visitor.hpp):
///   key(name, member, rule, restart, help)            the member's initial value is the default,
///   required(name, member, rule, restart, help)       a deck must give it,
///   derived(name, member, rule, restart, how, help)   derive() fills it as `how` says,
///   section(name, struct or optional struct, help).
namespace tessera {

struct RunSection {
  std::string name = "run";
  std::uint64_t seed = 1234;
  std::int64_t steps = 0;
  double mfu_peak = 0;
  Derived<std::int64_t> threads;  ///< the program fills it: only it knows the machine
  std::int64_t log_every = 0;

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
  }
  bool operator==(const RunSection&) const = default;
};

struct RopeScalingConfig {
  double factor = 0;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_seq_len = 0;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("factor", self.factor, from_to(1, 1e6), fixed, "How much slower the slowest pairs turn");
    v.key("low_freq_factor", self.low_freq_factor, from_to(1e-6, 1e6), fixed,
          "Pairs that turn fewer times in original_seq_len positions are slowed down by factor");
    v.key("high_freq_factor", self.high_freq_factor, from_to(1e-6, 1e6), fixed,
          "Pairs that turn more often in original_seq_len positions are left alone; those between slow down in part");
    v.required("original_seq_len", self.original_seq_len, from_to(1, 1 << 24), fixed,
               "Tokens of the sequences that the model learned from before");
  }
  bool operator==(const RopeScalingConfig&) const = default;
};

struct ModelConfig {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  Derived<std::int64_t> kv_heads;
  Derived<std::int64_t> head_dim;
  Derived<std::int64_t> ffn;
  std::int64_t seq_len = 0;
  Norm norm = Norm::layer;
  Position position = Position::learned;
  double rope_base = 10000;
  Activation activation = Activation::gelu;
  Derived<bool> bias;
  bool tied_head = false;
  Derived<std::int64_t> vocab;
  std::optional<MoeConfig> moe;
  double norm_eps = tessera::norm_eps;
  bool qk_norm = false;
  bool qkv_bias = false;
  std::optional<RopeScalingConfig> rope_scaling;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("layers", self.layers, from_to(1, 10000), fixed, "Transformer blocks");
    v.required("hidden", self.hidden, from_to(1, 1 << 20), fixed, "Width of the residual stream");
    v.required("heads", self.heads, from_to(1, 65536), fixed, "Query heads");
    v.derived("kv_heads", self.kv_heads, from_to(1, 65536), fixed, "heads",
              "Key and value heads; fewer than heads: grouped-query attention");
    v.derived("head_dim", self.head_dim, from_to(1, 65536), fixed, "hidden / heads", "Width of one head");
    v.derived("ffn", self.ffn, from_to(1, 1 << 24), fixed, "4 hidden; swiglu: 8/3 hidden, rounded up to 128",
              "Inner width of dense feed-forward layers");
    v.required("seq_len", self.seq_len, from_to(1, 1 << 24), fixed, "Tokens of a sequence");
    v.key("norm", self.norm, OneOf(), fixed, "layer: mean and variance; rms: root mean square, no bias");
    v.key("norm_eps", self.norm_eps, from_to(1e-30, 1), fixed, "Added to the mean square before its root");
    v.key("qk_norm", self.qk_norm, OneOf(), fixed,
          "Normalise queries and keys by their root mean square, head by head");
    v.key("position", self.position, OneOf(), fixed, "learned: an embedding added; rotary: queries and keys rotated");
    v.key("rope_base", self.rope_base, from_to(1, 1e12), fixed, "Base of the rotary angles");
    v.key("activation", self.activation, OneOf(), fixed, "gelu: the tanh form; swiglu: silu(gate) * up");
    v.derived("bias", self.bias, OneOf(), fixed, "true with norm layer, false with rms",
              "Biases of the linear layers");
    v.key("qkv_bias", self.qkv_bias, OneOf(), fixed, "Biases of queries, keys and values, where bias gives none");
    v.key("tied_head", self.tied_head, OneOf(), fixed, "Use the token embedding as the output layer");
    v.derived("vocab", self.vocab, from_to(1, 1 << 24), fixed,
              "256 for text, or data.tokenizer's; else token files need it",
              "Entries of the vocabulary");
    v.section("rope_scaling", self.rope_scaling,
              "Slower rotary angles for longer texts, by the rule of Llama 3; without it none is changed");
    v.section("moe", self.moe, "Mixture of experts in place of feed-forward layers; without it the model is dense");
  }
  bool operator==(const ModelConfig&) const = default;
};

struct RecomputeConfig {
  RecomputeMode mode = RecomputeMode::none;
  Derived<std::vector<RecomputeModule>> modules;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("mode", self.mode, OneOf(), may_change,
          "What backward computes again instead of keeping: nothing, the listed modules, or whole blocks. Same bits");
    v.derived("modules", self.modules, OneOf(), may_change, "[attention] for selective, else []",
              "Modules of mode selective");
  }
  bool operator==(const RecomputeConfig&) const = default;
};

struct DataConfig {
  DataKind kind = DataKind::text;
  Derived<std::string> root;  ///< absolute once a deck is read
  std::vector<std::string> files;
  Derived<double> eval_fraction;
  Derived<std::uint64_t> seed;
  bool shuffle = true;
  std::vector<std::string> eval_files;
  std::string tokenizer;  ///< absolute once a deck is read
  std::vector<double> mixture;
  EvalWindows eval_windows = EvalWindows::drawn;
  std::uint64_t eval_seed = 1234;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("kind", self.kind, OneOf(), on_request,
          "text: bytes are tokens; tokens: .bin files of llm.c, or of Megatron with their .idx");
    v.derived("root", self.root, Text::line, may_change, "the deck's folder",
              "Folder of the files, relative to the deck's folder; another corpus: --allow-change");
    v.required("files", self.files, Text::line, may_change,
               "Patterns below root, or absolute ones; * within a folder's name, ** crosses folders, but for links and "
               "those that begin with '.' or 'build'; another corpus: --allow-change");
    v.key("mixture", self.mixture, above_to(0, 1e6), on_request,
          "Weights, one for each pattern of files, which then is a corpus by itself: their shares of the samples, "
          "whatever the sizes; none: files are one corpus");
    v.key("eval_files", self.eval_files, Text::line_or_empty, may_change,
          "Patterns, as those of files, of a corpus that is evaluated on alone; none: eval_fraction says");
    v.key("tokenizer", self.tokenizer, Text::line_or_empty, may_change,
          "tokenizer.json of token files, relative to the deck's folder: for prompts, samples and the vocabulary");
    v.derived("eval_fraction", self.eval_fraction, from_below(0, 1), on_request,
              "0.05 for text, 0 for token files, with eval_files or a mixture",
              "Share of the windows that training never sees, kept for evaluation");
    v.key("eval_windows", self.eval_windows, OneOf(), on_request,
          "Which windows are evaluated. drawn: from all files, by eval_seed; tail: the last ones in the order of the "
          "files' names, or of eval_files the first");
    v.key("eval_seed", self.eval_seed, at_least(0), on_request,
          "Seed of drawn evaluation windows, whatever run.seed is: runs that differ in their seed compare");
    v.key("shuffle", self.shuffle, OneOf(), on_request,
          "Visit the windows of each epoch in an order drawn from the seed");
    v.derived("seed", self.seed, at_least(0), fixed, "run.seed", "Seed of the data order");
  }
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  std::int64_t global = 0;
  std::int64_t micro = 0;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("global", self.global, from_to(1, 1 << 24), on_request,
               "Sequences of one optimizer step, over all ranks");
    v.required("micro", self.micro, from_to(1, 1 << 24), may_change, "Sequences that a rank computes at once");
  }
  bool operator==(const BatchConfig&) const = default;
};

struct EvalConfig {
  std::int64_t every_steps = 0;
  std::int64_t batches = 8;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change, "Steps between evaluations; 0: none");
    v.key("batches", self.batches, from_to(1, 1 << 24), may_change, "Global batches of one evaluation, at most");
  }
  bool operator==(const EvalConfig&) const = default;
};

struct SampleConfig {
  std::int64_t tokens = 0;
  std::string prompt = "\n";
  std::int64_t every_steps = 0;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("tokens", self.tokens, from_to(0, 1 << 20), may_change, "Tokens of a sample, generated at the end; 0: none");
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change, "Steps between samples; 0: at the end alone");
    v.key("prompt", self.prompt, Text::any, may_change, "Text that the generated tokens continue");
  }
  bool operator==(const SampleConfig&) const = default;
};

struct PrecisionConfig {
  Compute compute = Compute::bf16;
  RecipeName recipe = RecipeName::bf16;
  Derived<PrimaryWeights> primary_weights;
  bool fuse_wgrad = true;
  bool quantize_head = false;
  std::int64_t bf16_first = 0;
  std::int64_t bf16_last = 0;
  std::int64_t statistics_every = 0;
  Derived<std::uint64_t> seed;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("compute", self.compute, OneOf(), fixed, "Type of weights, activations and the residual stream");
    v.key("recipe", self.recipe, OneOf(), may_change,
          "Format in which every linear and expert layer multiplies: weights, activations and gradients are quantized "
          "for each product; bf16: none is");
    v.derived("primary_weights", self.primary_weights, OneOf(), may_change, "bf16 with recipe bf16, else quantized",
              "How weights that the recipe quantizes are held. quantized: as codes; bf16: each product quantizes its "
              "weight. Same bits");
    v.key("fuse_wgrad", self.fuse_wgrad, OneOf(), may_change, "Accumulate weight gradients inside the GEMM");
    v.key("quantize_head", self.quantize_head, OneOf(), may_change, "Quantize an untied output layer too");
    v.key("bf16_first", self.bf16_first, from_to(0, 10000), may_change, "First blocks whose matrices stay in bf16");
    v.key("bf16_last", self.bf16_last, from_to(0, 10000), may_change, "Last blocks whose matrices stay in bf16");
    v.key("statistics_every", self.statistics_every, from_to(0, 1e12), may_change,
          "Steps between statistics of what quantizers do to each matrix, in quantization.jsonl; 0: none. Same bits");
    v.derived("seed", self.seed, at_least(0), may_change, "run.seed", "Seed of the draws of stochastic rounding");
  }
  bool operator==(const PrecisionConfig&) const = default;
};

struct GatherConfig {
  GatherGranularity granularity = GatherGranularity::automatic;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("granularity", self.granularity, OneOf(), may_change,
          "What full sharding gathers at once. block; module: its attention, or its feed-forward; auto: module where "
          "backward needs other codes than what it computes again, else block. Same bits");
  }
  bool operator==(const GatherConfig&) const = default;
};

struct ReduceConfig {
  double bucket_mib = 100;
  ReduceOrder order = ReduceOrder::rank;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("bucket_mib", self.bucket_mib, above_to(0, 65536), may_change, "MiB of fp32 gradients that travel together");
    v.key("order", self.order, OneOf(), may_change,
          "Order in which the gradients of a step's micro-batches are summed. batch: theirs, one after the other, so "
          "that bits do not depend on the number of ranks; rank: those of a rank first, in one exchange a step");
  }
  bool operator==(const ReduceConfig&) const = default;
};

struct MuonConfig {
  double momentum = 0.95;
  bool nesterov = true;
  MuonCoefficients coefficients = MuonCoefficients::quintic;
  MuonScale scale = MuonScale::spectral;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("momentum", self.momentum, from_below(0, 1), fixed, "Decay of the momentum");
    v.key("nesterov", self.nesterov, OneOf(), fixed, "Step along what the momentum will be, not what it is");
    v.key("coefficients", self.coefficients, OneOf(), fixed,
          "Newton-Schulz steps that make a matrix orthogonal: 5, 5 or 8 of them");
    v.key("scale", self.scale, OneOf(), fixed,
          "Of an orthogonal step [out, in], beside the rate: sqrt(max(out, in)), sqrt(max(1, out/in)), or 0.2 "
          "sqrt(max(out, in))");
  }
  bool operator==(const MuonConfig&) const = default;
};

struct OptimizerConfig {
  MatrixRule matrices = MatrixRule::adamw;
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  Moments moments = Moments::fp32;
  double clip = 1;
  RateSchedule schedule = RateSchedule::cosine;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  double min_lr = 0;
  std::int64_t max_skips = 10;
  double skip_spikes = 0;
  MuonConfig muon;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("matrices", self.matrices, OneOf(), fixed,
          "Rule of the blocks' matrices and experts; other parameters have AdamW's");
    v.key("lr", self.lr, from_to(0, 1e3), may_change, "Learning rate after warm-up");
    v.key("beta1", self.beta1, from_below(0, 1), fixed, "Decay of the first moment");
    v.key("beta2", self.beta2, from_below(0, 1), fixed, "Decay of the second moment");
    v.key("eps", self.eps, from_to(1e-30, 1), fixed, "Added to the root of the second moment");
    v.key("weight_decay", self.weight_decay, from_to(0, 1e3), may_change, "Decoupled decay of matrices and embeddings");
    v.key("moments", self.moments, OneOf(), fixed,
          "Type in which AdamW's moments and Muon's momentum are kept: rounded once after use");
    v.key("clip", self.clip, from_to(0, 1e30), may_change, "Largest norm of all parameters' gradient; 0: no limit");
    v.key("schedule", self.schedule, OneOf(), on_request, "Learning rate after warm-up; wsd: constant, then linear");
    v.key("warmup_steps", self.warmup_steps, from_to(0, 1e12), on_request,
          "Steps in which the rate rises from 0 to lr");
    v.key("decay_steps", self.decay_steps, from_to(0, 1e12), on_request,
          "Last steps of schedule wsd, from lr to min_lr");
    v.key("min_lr", self.min_lr, from_to(0, 1e3), may_change, "Learning rate at the last step");
    v.key("max_skips", self.max_skips, from_to(1, 1e12), may_change, "Steps in a row, not finite, that end the run");
    v.key("skip_spikes", self.skip_spikes, from_to(0, 1e3), may_change,
          "Skip a step whose gradient norm lies more than so many standard deviations above the mean of 128 steps, "
          "those before the last one; 0: none. Where a checkpoint lacks these norms, they are gathered first");
    v.section("muon", self.muon, "Muon, where matrices says so: momentum, made orthogonal matrix by matrix");
  }
  bool operator==(const OptimizerConfig&) const = default;
};

struct CommConfig {
  std::int64_t timeout_s = 300;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("timeout_s", self.timeout_s, from_to(1, 1e6), may_change,
          "Seconds that a rank waits for the others: more than two steps take");
  }
  bool operator==(const CommConfig&) const = default;
};

struct ParallelConfig {
  std::int64_t expert = 1;
  Derived<double> expert_room;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("expert", self.expert, from_to(1, 65536), may_change,
          "Neighbouring ranks that hold the experts between them (expert parallelism): rows of tokens travel to their "
          "experts' ranks and back; divides the ranks and the experts");
    v.derived("expert_room", self.expert_room, from_to(1, 65536), may_change,
              "always enough: expert * min(top_k, experts / expert) / top_k",
              "Rows that a rank has memory for, over its even share of a layer's; a run in which more arrive ends");
  }
  bool operator==(const ParallelConfig&) const = default;
};

struct CheckpointConfig {
  Derived<std::string> dir;
  std::int64_t every_steps = 0;
  std::int64_t keep_last = 2;
  std::int64_t keep_every = 0;
  ExpertLayout expert_layout = ExpertLayout::as_in_memory;
  Derived<CheckpointIo> io;
  std::map<std::string, std::string> mpio_hints;
  bool async = false;
  bool quantized = false;
  std::string init_from;
  std::vector<std::string> init_missing;
  std::vector<std::string> init_rows;
  bool init_ignore_extra = false;
  bool init_other_tokenizer = false;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.derived("dir", self.dir, Text::line, may_change, "runs/<run.name>",
              "The run directory, relative to the working directory");
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change,
          "Steps between checkpoints; 0: none but the last step's, which is always saved");
    v.key("keep_last", self.keep_last, from_to(2, 1e6), may_change, "Newest valid checkpoints that are kept");
    v.key("keep_every", self.keep_every, from_to(0, 1e12), may_change,
          "Checkpoints of steps that are multiples of it are kept for good; 0: none");
    v.key("expert_layout", self.expert_layout, OneOf(), may_change,
          "Expert weights in files: single, one dataset a projection; discrete, one an expert; auto: as in memory");
    v.derived("io", self.io, OneOf(), may_change, "mpio; direct with async",
              "How ranks move payload: mpio, through HDF5's MPI-IO driver; direct, by the system's own calls");
    v.key("mpio_hints", self.mpio_hints, Text::line, may_change,
          "Hints for MPI-IO, by name, as its library knows them, with io mpio: {striping_factor: 8}");
    v.key("async", self.async, OneOf(), may_change,
          "Save a copy of the state in host memory while training goes on; by io direct");
    v.key("quantized", self.quantized, OneOf(), may_change,
          "Write quantized.h5 too: what `tessera quantize` makes of model.h5 in the format of the recipe's weights");
    v.key("init_from", self.init_from, Text::line_or_empty, may_change,
          "First weights of a fresh run, from step 0: a checkpoint, run directory or Hugging Face folder; empty: "
          "drawn");
    v.key("init_missing", self.init_missing, Text::line_or_empty, may_change,
          "Weights, by name, that init_from may lack: they start as drawn");
    v.key("init_rows", self.init_rows, Text::line_or_empty, may_change,
          "Weights with a row a token or position, by name, that may have fewer rows in init_from: further ones start "
          "as drawn");
    v.key("init_ignore_extra", self.init_ignore_extra, OneOf(), may_change,
          "Pass over weights of init_from that the model does not have");
    v.key("init_other_tokenizer", self.init_other_tokenizer, OneOf(), may_change,
          "Take weights that were trained with another tokenizer than this run's: a row then stands for another token");
  }
  bool operator==(const CheckpointConfig&) const = default;
};

struct DebugConfig {
  std::int64_t replica_hash_every = 0;
  std::int64_t spot_check_every = 0;
  ConfirmSkips confirm_skips = ConfirmSkips::automatic;
  std::string trace;
  std::string profile;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("replica_hash_every", self.replica_hash_every, from_to(0, 1e12), may_change,
          "Steps between comparisons of the weights' bits on all ranks; 0: none");
    v.key("spot_check_every", self.spot_check_every, from_to(0, 1e12), may_change,
          "Steps between spot checks: each rank's first micro-batch is computed by another rank too (by one rank alone "
          "twice), and gradients of other bits end the run with code 8; 0: none");
    v.key("confirm_skips", self.confirm_skips, OneOf(), may_change,
          "Compute a step once more before it is skipped: equal bits are the data's fault, others a machine's, and "
          "the run ends with code 8. always: on GPUs too, where the host waits for each step then; auto: on CPUs only");
    v.key("trace", self.trace, Text::line_or_empty, may_change,
          "File of digests, a JSON line per step of this start; a resumed run keeps those before as FILE.1, FILE.2 and "
          "so on; empty: none");
    v.key("profile", self.profile, Text::line_or_empty, may_change,
          "File of a Chrome trace of steps 5 to 8 of a start, for Perfetto or chrome://tracing: regions, collectives "
          "and, on a GPU, every kernel; empty: none. Same bits");
  }
  bool operator==(const DebugConfig&) const = default;
};

struct ProofConfig {
  bool gather_overlap = true;
  GatherWire wire = GatherWire::automatic;
  Derived<GatherCuts> cuts;
  GatherStaging staging = GatherStaging::automatic;
  bool reduce_overlap = true;
  bool graph = true;
  bool copy_engines = true;
  bool share_gpu = false;
  bool mixed_hosts = false;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("gather_overlap", self.gather_overlap, OneOf(), may_change, "Gather weights under the next forward");
    v.key("wire", self.wire, OneOf(), may_change,
          "What travels of weights that are held quantized: their codes, or their bf16, which every rank quantizes; "
          "auto: the fewer bytes");
    v.derived("cuts", self.cuts, OneOf(), may_change,
              "tile where sharding is full or the codes of mxfp8 travel, else flat",
              "Where weights that the recipe quantizes are cut between ranks. flat: anywhere, in equal slices; tile: "
              "between rows of scale blocks");
    v.key("staging", self.staging, OneOf(), may_change,
          "Where the bf16 of weights that are held quantized waits for its gather. alias_grads: in the first half of "
          "their gradients; ring: in two slots as large as the largest group; auto: alias_grads");
    v.key("reduce_overlap", self.reduce_overlap, OneOf(), may_change, "Reduce gradients under the rest of backward");
    v.key("graph", self.graph, OneOf(), may_change,
          "On a GPU, capture a step once and replay it as one CUDA graph, rather than launch kernel by kernel");
    v.key("copy_engines", self.copy_engines, OneOf(), may_change,
          "Let the copy engines of GPUs on one host move gradients and weights, so that no multiprocessor takes part; "
          "where they cannot, or with false, NCCL does");
    v.key("share_gpu", self.share_gpu, OneOf(), may_change,
          "Let several ranks share a GPU; they talk through host memory");
    v.key("mixed_hosts", self.mixed_hosts, OneOf(), may_change,
          "Let ranks compute with other builds, libraries, instructions or GPUs than each other: other bits than on "
          "equal hosts, and replicas that may differ");
  }
  bool operator==(const ProofConfig&) const = default;
};

struct RunConfig {
  std::int64_t schema_version = 1;
  RunSection run;
  ModelConfig model;
  RecomputeConfig recompute;
  DataConfig data;
  BatchConfig batch;
  EvalConfig eval;
  SampleConfig sample;
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
    v.section("precision", self.precision, "Number formats");
    v.key("sharding", self.sharding, OneOf(), Restart::may_change,
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
  bool operator==(const RunConfig&) const = default;
};

/// Fills every derived key that the deck left open and that follows from the other keys. Four may stay open:
/// run.threads (depends on the machine), data.root (on the deck's folder), model.vocab with token files, and
/// model.head_dim if heads does not divide hidden.
void derive(RunConfig& config);

/// The smallest parallel.expert_room that suffices for any routing: each rank of an expert group sends a token at most
/// once to each expert.
double ample_room(const RunConfig& config);
/// Whether full sharding all-gathers a module at a time: if gather.granularity says so; with `auto`, if the two copies
/// of a weight travel apart and recomputation is selective. `config.precision.primary_weights` must be filled.
bool gathers_modules(const RunConfig& config);

/// stages_values: whether quantized weights are all-gathered as bf16, which is staged. ships_both_copies: whether they
/// travel as codes of both copies, because neither can be derived from the other; that takes proof.cuts `tile`.
/// `config.precision.primary_weights` must be filled.
bool stages_values(const RunConfig& config);
bool ships_both_copies(const RunConfig& config);

/// One message about a deck, with the keys that it is about; the first is the one to change.
struct Finding {
  std::vector<std::string> keys;
  std::string text;
};

/// Contradictions of a derived config that do not depend on machine or rank count; empty: none.
std::vector<Finding> check(const RunConfig& config);

/// A key that a resumed run must keep, unless asked to change it, or that may change what it computes, and whose value
/// differs.
struct KeyChange {
  std::string key, before, now;  ///< values as a deck writes them; "absent" if the key's section is absent
  Restart restart = Restart::fixed;
};
/// The keys of that kind in which two derived configs differ.
std::vector<KeyChange> changed_keys(const RunConfig& before, const RunConfig& now);

/// The end of a sentence on what a resumed run must keep: "..., unless `train --allow-change KEY` lets it change".
std::string keep_it_text(const std::string& key, Restart restart);

/// A finding for each key that a resumed run must keep and whose value differs from the saved run's, except keys in
/// `asked` (`train --allow-change`). Both configs are derived.
std::vector<Finding> changes_at_restart(const RunConfig& saved, const RunConfig& now,
                                        const std::set<std::string>& asked = {});

/// Advice on values that others contradict; effects.hpp: on keys without effect.
std::vector<Finding> advise(const RunConfig& config);

}  // namespace tessera
