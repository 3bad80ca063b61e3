#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/cli/gpus.hpp"
#include "app/cli/memory.hpp"
#include "app/cli/ranks.hpp"
#include "app/cli/threads.hpp"
#include "app/training/start/given_weights.hpp"
#include "app/training/start/known_tokenizer.hpp"
#include "app/training/start/preparation.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "core/step/decoder.hpp"
#include "io/convert/hf_companions.hpp"
#include "io/data/utf8.hpp"
#include "io/files/access.hpp"
#include "io/metrics/console.hpp"
#include "io/text/tokenizer.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t usual_tokens = 128;

/// encoding_of() where the prompt is ids: then a tokenizer that cannot be read only leaves the answer without text,
/// which `missing` explains.
std::unique_ptr<TextEncoding> encoding_if_readable(const GivenWeights& given, std::string& missing) try {
  return encoding_of(given);
} catch (const std::exception& error) {  // also those of a file of an unexpected shape
  missing = fmt::format("{}\nthe answer is ids without text\n", error.what());
  return nullptr;
}

/// Tokens that end a text. A tokenizer.json that cannot be read says of none.
std::set<std::int32_t> ends_of(const GivenWeights& given) {
  const auto text = [&](const char* name) {
    try {
      return given.companion(name);
    } catch (const Error&) {
      if (name != std::string_view(tokenizer_file)) throw;
      return std::optional<std::string>();
    }
  };
  const std::vector<std::int32_t> ends = end_ids(text, given.path);
  return {ends.begin(), ends.end()};
}

/// The prompt: text, or ids, to be continued.
struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
};

std::string prompt_text(const GenerateOptions& options, const GivenWeights& given) {
  if (!options.prompt && given.config.sample.prompt.empty()) throw Error(Exit::usage, "--prompt: is needed");
  if (!options.prompt) return given.config.sample.prompt;
  if (*options.prompt != "-") return *options.prompt;
  return {std::istreambuf_iterator<char>(std::cin), {}};  // rank 0's: launchers give standard input to it alone
}

Prompt prompt_of(const GenerateOptions& options, const GivenWeights& given, const TextEncoding* encoding,
                 Control& control) {
  Prompt prompt{"", options.prompt_ids};
  Problems problems;
  if (prompt.ids.empty()) {
    if (control.rank() == 0) attempt(problems, [&] { prompt.text = prompt_text(options, given); });
    control.agree(problems);
    prompt.text = control.broadcast(prompt.text);
    attempt(problems, [&] {
      if (!encoding)
        throw Error(Exit::usage,
                    fmt::format("--prompt: {} holds no {}, so no text can be encoded: put one there, or give "
                                "--prompt-ids",
                                given.path.string(), tokenizer_file));
      prompt.ids = encoding->encode(prompt.text);
      if (prompt.ids.empty()) throw Error(Exit::usage, "--prompt: is empty; at least one token is needed");
    });
  }
  for (const std::int32_t id : prompt.ids)
    if (id < 0 || id >= given.config.model.vocab)
      problems.add(Exit::usage, fmt::format("--prompt-ids: {} is outside the vocabulary of {}", id,
                                            given.config.model.vocab.get()));
  control.agree(problems);
  return prompt;
}

/// Number of tokens to generate: as requested; else the default number, or as many as there is room for.
std::int64_t count_of(const GenerateOptions& options, const GivenWeights& given, const Prompt& prompt) {
  const std::int64_t room = given.config.model.seq_len - std::ssize(prompt.ids) + 1;
  if (room < 1) {
    const std::int64_t most = given.config.model.seq_len;
    const bool text = options.prompt_ids.empty();
    throw Error(Exit::usage,
                fmt::format("{}: {}, and the model's sequences hold {}: give its end alone, {} {}",
                            text ? "--prompt" : "--prompt-ids", counted(std::ssize(prompt.ids), "token"), most,
                            text ? "as tail -c cuts it: as many bytes are no more tokens than" : "the last", most));
  }
  const std::int64_t count = options.tokens.value_or(std::clamp<std::int64_t>(room, 1, usual_tokens));
  if (count > room)
    throw Error(Exit::usage,
                fmt::format("--tokens: {} after a prompt of {} are more than the model's sequences of {} hold", count,
                            counted(std::ssize(prompt.ids), "token"), given.config.model.seq_len));
  return count;
}

/// Rank 0's output: text as it is generated, or JSON at the end.
class Output {
 public:
  Output(const GenerateOptions& options, const Prompt& prompt, const TextEncoding* encoding, bool speaking)
      : format_(options.format), prompt_(prompt), encoding_(encoding), speaking_(speaking) {
    stream(prompt.text);
  }
  void token(std::int32_t id) {
    ids_.push_back(id);
    const std::string bytes = encoding_ ? encoding_->bytes_of(id) : "";
    bytes_ += bytes;
    stream(encoding_ ? characters_.take(bytes) : fmt::format("{} ", id));
  }
  void end(double seconds) {
    if (format_ == Format::text) return stream(characters_.rest() + "\n");
    Json json = {{"prompt", text_of(prompt_.text)}, {"prompt_tokens", prompt_.ids}, {"tokens", ids_}};
    json["text"] = encoding_ ? Json(text_of(bytes_)) : Json();
    json["seconds"] = seconds;
    if (speaking_) fmt::print("{}\n", json.dump());
  }

 private:
  void stream(const std::string& text) const {
    if (!speaking_ || format_ == Format::json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  Format format_;
  const Prompt& prompt_;
  const TextEncoding* encoding_;
  bool speaking_;
  Characters characters_{Controls::replaced};  // as a terminal can show them
  std::vector<std::int32_t> ids_;
  std::string bytes_;
};

RunPlan plan_of(const GivenWeights& given, std::int64_t capacity, int gpu, const Mpi& mpi, Control& control) {
  std::optional<RunPlan> plan;
  Problems problems;
  attempt(problems, [&] { plan.emplace(resolve_decoding(given.config, mpi.size(), mpi.rank(), capacity)); });
  control.agree(problems);
  problems.add(problems_with_memory(mpi, control, *plan, gpu));
  problems.add(problems_with_weights(given, *plan, {}));
  control.agree(problems);
  return std::move(*plan);
}

int generate_text(const GenerateOptions& options, Mpi& mpi, Control& control) {
  Problems problems;
  std::string path;
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  attempt(problems, [&] { path = path_of_weights(options.model); });
  control.agree(problems);
  GivenWeights given = open_weights(path, control);
  const std::chrono::seconds patience = given.config.comm.timeout();
  control.wait_at_most(patience);
  given.config.run.threads = host_threads(control.max(mpi.local_rank() + 1));
  Runtime::plan_for(static_cast<int>(given.config.run.threads.get()));
  std::unique_ptr<TextEncoding> encoding;
  std::set<std::int32_t> ends;
  std::string missing;
  attempt(problems, [&] {
    encoding = options.prompt_ids.empty() ? encoding_of(given) : encoding_if_readable(given, missing);
    ends = ends_of(given);
  });
  control.agree(problems);
  if (mpi.rank() == 0) fmt::print(stderr, "{}", missing);
  const Prompt prompt = prompt_of(options, given, encoding.get(), control);
  std::int64_t count = 0;
  attempt(problems, [&] { count = count_of(options, given, prompt); });
  const bool shared = given.config.proof.share_gpu;  // as the saved run had it
  problems.add(problems_with_gpus(mpi, control, shared ? Sharing::allowed : Sharing::refused));
  problems.add(problems_with_threads(given.config.run.threads.get()));
  control.agree(problems);
  const int gpu = own_gpu(mpi);
  // The sequence needs no room for the last token, which is drawn but not fed to the model.
  const RunPlan plan = plan_of(given, std::ssize(prompt.ids) + count - 1, gpu, mpi, control);
  const Runtime runtime(static_cast<int>(given.config.run.threads.get()), gpu);
  Device device;
  Mesh mesh = mpi.mesh(device, plan.ranks, patience, {.copy_engines = given.config.proof.copy_engines});
  const auto made = make_on_all<Decoder>(control, device, plan, mesh);
  Decoder& decoder = *made;
  return or_end_all_ranks(mpi, [&] {
    decoder.initialise([&](StateDict& weights) { load_weights(*given.source, weights, device, control); });
    Output output(options, prompt, encoding.get(), mpi.rank() == 0);
    const auto begin = std::chrono::steady_clock::now();
    const NextLogits next = [&](const std::vector<std::int32_t>& ids) {
      return decoder.extend(std::span(ids).subspan(static_cast<std::size_t>(decoder.length())));
    };
    generate(next, options.sampling, prompt.ids, count, [&](std::int32_t id) {
      if (ends.contains(id)) return false;
      output.token(id);
      return true;
    });
    output.end(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return 0;
  });
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  return on_all_ranks([&](Mpi& mpi, Control& control) { return generate_text(options, mpi, control); });
}

}  // namespace tessera
