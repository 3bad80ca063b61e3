#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/training/loop/generation.hpp"
#include "app/training/start/run_request.hpp"
#include "io/checkpoint/best.hpp"
#include "io/checkpoint/averages.hpp"
#include "io/convert/convert_checkpoint.hpp"
#include "io/deck/deck.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// Format of a verb's output: text for people, or JSON.
enum class Format { text, json };

struct TrainOptions : RunRequest {
  std::string time_limit;     ///< "HH:MM:SS", or empty
};
struct EvalOptions {
  std::string deck;        ///< with `text`: a checkpoint, run directory, Hugging Face folder, or a run's deck
  std::vector<Override> overrides;
  std::string checkpoint;  ///< of `deck`; empty with `text`
  std::string text;        ///< a file of text, "-": standard input; empty: the deck's evaluation sets
  Chosen step = Chosen::newest;
  Taken weights = Taken::trained;
  Format format = Format::text;
};
struct AuditOptions {
  std::string run;                       ///< a run directory
  std::optional<std::int64_t> from, to;  ///< steps of checkpoints; empty: the oldest, the newest. from 0: drawn weights
  std::vector<Override> overrides;
  Format format = Format::text;
};
struct GenerateOptions {
  std::string model;                     ///< a deck, a checkpoint or a Hugging Face folder
  std::optional<std::string> prompt;     ///< "-": standard input; empty: the deck's
  std::vector<std::int32_t> prompt_ids;  ///< token ids in place of text
  std::string prompts;                   ///< a file with a prompt a line; empty: none
  std::vector<std::string> stops;        ///< texts before which an answer ends
  std::optional<std::int64_t> tokens;
  Sampling sampling = {.seed = 1234};
  Chosen step = Chosen::newest;
  Taken weights = Taken::trained;
  Format format = Format::text;
};
enum class Detail { summary, all };
struct PlanOptions {
  std::string deck;
  std::vector<Override> overrides;
  std::int64_t ranks = 1;
  std::int64_t hosts = 1;   ///< over which the ranks are spread
  std::int64_t memory = 0;  ///< bytes that a rank has, to compare the plan with; 0: no comparison
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
  std::string deck;  ///< deck whose values and origins are shown; empty: none
  std::vector<Override> overrides;
};
struct CompareOptions {
  std::vector<std::string> runs;  ///< run directories; two files if `trace`
  bool trace = false;             ///< compare files of debug.trace
  std::string by;                  ///< a key whose values are averaged over; empty: each run stands by itself
  std::optional<std::string> out;  ///< the page; empty: compare.html, or with JSON none
  Format format = Format::text;
};
struct InfoOptions {
  Format format = Format::text;
};

struct CheckpointOptions {
  std::string path, other;  ///< other: the second checkpoint of diff
  Format format = Format::text;
};

enum class Abandoned { kept, removed };
enum class Doing { it, nothing };  ///< nothing: the verb only says what it would do
struct CheckpointRmOptions {
  std::string run;
  std::vector<std::int64_t> steps;
  Abandoned abandoned = Abandoned::kept;
  Doing doing = Doing::it;
  Format format = Format::text;
};

struct CheckpointConvertOptions {
  std::string from, to;  ///< source: a checkpoint, run directory or Hugging Face folder; destination: a new folder
  Chosen step = Chosen::newest;
  std::optional<ExpertWeights> experts;
  std::optional<DType> type;
  Extent extent = Extent::all;
  std::string upcycling;  ///< as read_upcycling() takes it; empty: none
  Target target = Target::tessera;
  std::optional<std::int64_t> shard_bytes;  ///< with target safetensors
  bool codes = false;                       ///< weights as the codes that training multiplies
  std::optional<CodesLayout> layout;        ///< with codes
  std::vector<std::string> command_line;  ///< as typed
  Format format = Format::text;
};

struct QuantizeOptions {
  std::string in, out;               ///< in: safetensors or HDF5; out: HDF5
  std::vector<std::string> tensors;  ///< empty: every matrix and stack of matrices
  std::optional<FormatId> format;    ///< a quantized format; empty: as training holds each weight
  Precision precision = Precision::bf16_first;
  Format answer = Format::text;
};

/// The verbs. Each returns an exit code, or throws Error with one. train, eval, audit and generate initialise MPI and
/// are collective over the world; the others are Local.
int run_train(const TrainOptions& options);
/// Prints the evaluation loss of a checkpoint, with the bits that its run would have computed, or the loss of a text.
int run_eval(const EvalOptions& options);
/// Makes the steps between two checkpoints of a run again, on any ranks, and compares; returns 1 if bits differ.
int run_audit(const AuditOptions& options);
/// Prints text that a model generates.
int run_generate(const GenerateOptions& options);
int run_plan(const PlanOptions& options);
/// Prints the resolved deck and the corpus, and advice on stderr; throws what train would refuse.
int run_validate(const ValidateOptions& options);
int run_explain(const ExplainOptions& options);
/// Prints runs' final figures and differing settings, and writes a page of them.
int run_compare(const CompareOptions& options);
int run_info(const InfoOptions& options);
/// `checkpoint` verbs on a run directory or step folder. diff returns 1 if the two differ, verify 5 if one is damaged.
int run_checkpoint_ls(const CheckpointOptions& options);
int run_checkpoint_inspect(const CheckpointOptions& options);
int run_checkpoint_verify(const CheckpointOptions& options);
int run_checkpoint_diff(const CheckpointOptions& options);
/// Removes steps of a run directory that no run trains in, never the newest valid one; all or, with a reason, none.
int run_checkpoint_rm(const CheckpointRmOptions& options);
int run_checkpoint_convert(const CheckpointConvertOptions& options);
int run_quantize(const QuantizeOptions& options);

}  // namespace tessera
