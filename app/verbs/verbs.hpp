#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/training/generation.hpp"
#include "app/training/run_request.hpp"
#include "io/convert/convert_checkpoint.hpp"
#include "io/deck/deck.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// How a verb answers: for people, or JSON for programs.
enum class Format { text, json };

struct TrainOptions : RunRequest {
  std::int64_t stop_at = -1;  ///< -1: no such step
  std::string time_limit;     ///< "HH:MM:SS", or empty
};
struct EvalOptions {
  std::string deck;
  std::vector<Override> overrides;
  std::string checkpoint;
  Format format = Format::text;
};
struct GenerateOptions {
  std::string model;                     ///< a deck, a checkpoint or a Hugging Face folder
  std::optional<std::string> prompt;     ///< "-": standard input; none: the deck's
  std::vector<std::int32_t> prompt_ids;  ///< in place of text
  std::optional<std::int64_t> tokens;
  Sampling sampling = {.seed = 1234};
  Format format = Format::text;
};
enum class Detail { summary, all };
struct PlanOptions {
  std::string deck;
  std::vector<Override> overrides;
  std::int64_t ranks = 1;
  std::int64_t memory = 0;  ///< that a rank has; 0: not asked
  Detail detail = Detail::summary;
  Format format = Format::text;
};
struct ValidateOptions {
  std::string deck;
  std::vector<Override> overrides;
  std::int64_t ranks = 1;
};
struct ExplainOptions {
  std::string key;   ///< a key, a section, or empty: all
  std::string deck;  ///< whose values and their places are told; empty: none's
  std::vector<Override> overrides;
};
struct CompareOptions {
  std::vector<std::string> runs;  ///< run directories
  std::string out = "compare.html";
  Format format = Format::text;
};
struct InfoOptions {
  Format format = Format::text;
};

struct CheckpointOptions {
  std::string path, other;  ///< other: what diff compares with
  Format format = Format::text;
};

struct CheckpointConvertOptions {
  std::string from, to;  ///< a checkpoint, run directory or Hugging Face folder; a folder to be made
  std::optional<ExpertWeights> experts;
  std::optional<DType> type;
  Extent extent = Extent::all;
  Target target = Target::tessera;
  std::int64_t shard_bytes = ConvertOptions{}.shard_bytes;
  std::vector<std::string> command_line;  ///< as it was typed
  Format format = Format::text;
};

struct QuantizeOptions {
  std::string in, out;               ///< safetensors or HDF5; HDF5
  std::vector<std::string> tensors;  ///< none: every matrix and stack of matrices
  FormatId format{};                 ///< a quantized one
  Precision precision = Precision::bf16_first;
  Format answer = Format::text;
};

/// The verbs: each returns an exit code, or throws Error with one. Only train, eval and generate are collective and
/// start MPI.
int run_train(const TrainOptions& options);
/// The evaluation loss of a checkpoint, as its run would have found it.
int run_eval(const EvalOptions& options);
/// Text that a model writes.
int run_generate(const GenerateOptions& options);
int run_plan(const PlanOptions& options);
/// Prints the resolved deck and the corpus, and on stderr what is probably not meant; throws what train would refuse.
int run_validate(const ValidateOptions& options);
int run_explain(const ExplainOptions& options);
/// Prints runs' final figures and differing settings, and writes compare.html.
int run_compare(const CompareOptions& options);
int run_info(const InfoOptions& options);
/// `checkpoint` on a run directory or step folder; diff returns 1 where two differ, verify 5 where one is damaged.
int run_checkpoint_ls(const CheckpointOptions& options);
int run_checkpoint_inspect(const CheckpointOptions& options);
int run_checkpoint_verify(const CheckpointOptions& options);
int run_checkpoint_diff(const CheckpointOptions& options);
int run_checkpoint_convert(const CheckpointConvertOptions& options);
int run_quantize(const QuantizeOptions& options);

}  // namespace tessera
