#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/cli/gpus.hpp"
#include "app/cli/memory.hpp"
#include "app/cli/ranks.hpp"
#include "app/cli/threads.hpp"
#include "app/training/start/given_weights.hpp"
#include "app/training/start/known_tokenizer.hpp"
#include "app/training/start/preparation.hpp"
#include "app/training/start/stop_texts.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "core/step/decoder.hpp"
#include "io/convert/hf_companions.hpp"
#include "io/data/utf8.hpp"
#include "io/files/access.hpp"
#include "io/files/json_text.hpp"
#include "io/files/text_file.hpp"
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

/// The prompt that a line of a .jsonl file holds.
std::string prompt_in(const std::string& line, const std::string& place) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.contains("prompt") && json["prompt"].is_string())
    return json["prompt"].get<std::string>();
  throw Error(Exit::usage, place + ": is no JSON text, and no object with one in \"prompt\"");
}

/// The prompts of a file, of lines that are not empty.
std::vector<std::string> prompts_in(const std::string& file) {
  std::vector<std::string> prompts;
  std::istringstream lines(read_text_file(file));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    prompts.push_back(file.ends_with(".jsonl") ? prompt_in(line, fmt::format("--prompts: {}:{}", file, number)) : line);
  }
  if (prompts.empty()) throw Error(Exit::usage, fmt::format("--prompts: {}: holds no prompt", file));
  return prompts;
}

/// The texts to continue, as rank 0 reads them. Collective over the world.
std::vector<std::string> prompt_texts(const GenerateOptions& options, const GivenWeights& given, Control& control) {
  Problems problems;
  std::vector<std::string> texts;
  if (control.rank() == 0)
    attempt(problems, [&] {
      if (options.prompts.empty()) texts = {prompt_text(options, given)};
      else texts = prompts_in(options.prompts);
    });
  control.agree(problems);
  const std::int64_t count = control.max(std::ssize(texts));
  texts.resize(static_cast<std::size_t>(count));
  for (std::string& text : texts) text = control.broadcast(text);
  return texts;
}

std::vector<Prompt> prompts_of(const GenerateOptions& options, const GivenWeights& given, const TextEncoding* encoding,
                               Control& control) {
  std::vector<Prompt> prompts;
  if (!options.prompt_ids.empty()) prompts.push_back({"", options.prompt_ids});
  Problems problems;
  const char* const option = options.prompts.empty() ? "--prompt" : "--prompts";
  if (prompts.empty())
    for (const std::string& text : prompt_texts(options, given, control))
      attempt(problems, [&] {
        if (!encoding)
          throw Error(Exit::usage,
                      fmt::format("{}: {} holds no {}, so no text can be encoded: put one there, or give "
                                  "--prompt-ids",
                                  option, given.path.string(), tokenizer_file));
        prompts.push_back({text, encoding->encode(text)});
        if (prompts.back().ids.empty())
          throw Error(Exit::usage, fmt::format("{}: is empty; at least one token is needed", option));
      });
  if (!encoding && !options.stops.empty())
    problems.add(Exit::usage, fmt::format("--stop: {} holds no {}, so answers have no text", given.path.string(),
                                          tokenizer_file));
  for (const Prompt& prompt : prompts)
    for (const std::int32_t id : prompt.ids)
      if (id < 0 || id >= given.config.model.vocab)
        problems.add(Exit::usage, fmt::format("--prompt-ids: {} is outside the vocabulary of {}", id,
                                              given.config.model.vocab.get()));
  control.agree(problems);
  return prompts;
}

/// Number of tokens to generate: as requested; else the default number, or as many as there is room for.
std::int64_t count_of(const GenerateOptions& options, const GivenWeights& given, const Prompt& prompt) {
  const std::int64_t room = given.config.model.seq_len - std::ssize(prompt.ids) + 1;
  if (room < 1) {
    const std::int64_t most = given.config.model.seq_len;
    const bool text = options.prompt_ids.empty();
    const char* const option = !options.prompts.empty() ? "--prompts" : text ? "--prompt" : "--prompt-ids";
    throw Error(Exit::usage,
                fmt::format("{}: {}, and the model's sequences hold {}: give its end alone, {} {}", option,
                            counted(std::ssize(prompt.ids), "token"), most,
                            text ? "as tail -c cuts it: as many bytes are no more tokens than" : "the last", most));
  }
  const std::int64_t count = options.tokens.value_or(std::clamp<std::int64_t>(room, 1, usual_tokens));
  if (count > room)
    throw Error(Exit::usage,
                fmt::format("--tokens: {} after a prompt of {} are more than the model's sequences of {} hold", count,
                            counted(std::ssize(prompt.ids), "token"), given.config.model.seq_len));
  return count;
}

/// The answer to one prompt, on every rank, and rank 0's output of it: text as it is generated, or JSON at the end.
class Output {
 public:
  Output(const GenerateOptions& options, const Prompt& prompt, const TextEncoding* encoding, bool speaking)
      : format_(options.format), prompt_(prompt), encoding_(encoding), stop_(options.stops), speaking_(speaking) {
    stream(prompt.text);
  }
  /// Returns whether the answer goes on behind the token.
  bool token(std::int32_t id) {
    ids_.push_back(id);
    if (encoding_) show(stop_.take(encoding_->bytes_of(id)));
    else stream(fmt::format("{} ", id));
    return !stop_.ended();
  }
  void end(double seconds) {
    show(stop_.rest());
    if (format_ == Format::text) return stream(characters_.rest() + "\n");
    Json json = {{"prompt", text_of(prompt_.text)}, {"prompt_tokens", prompt_.ids}, {"tokens", ids_}};
    json["text"] = encoding_ ? Json(text_of(bytes_)) : Json();
    json["seconds"] = seconds;
    if (speaking_) fmt::print("{}\n", json_text(json));
  }

 private:
  void show(const std::string& bytes) {
    bytes_ += bytes;
    stream(characters_.take(bytes));
  }
  void stream(const std::string& text) const {
    if (!speaking_ || format_ == Format::json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  Format format_;
  const Prompt& prompt_;
  const TextEncoding* encoding_;
  StopTexts stop_;
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
  attempt(problems, [&] {
    if (control.rank() == 0) path = path_of_weights(options.model, options.step);
  });
  control.agree(problems);
  GivenWeights given = open_weights(path, control, nullptr, options.weights);
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
  const std::vector<Prompt> prompts = prompts_of(options, given, encoding.get(), control);
  std::vector<std::int64_t> counts;
  std::int64_t capacity = 0;
  for (const Prompt& prompt : prompts)
    attempt(problems, [&] {
      counts.push_back(count_of(options, given, prompt));
      // The sequence needs no room for the last token, which is drawn but not fed to the model.
      capacity = std::max(capacity, std::ssize(prompt.ids) + counts.back() - 1);
    });
  const bool shared = given.config.proof.share_gpu;  // as the saved run had it
  problems.add(problems_with_gpus(mpi, control, shared ? Sharing::allowed : Sharing::refused));
  problems.add(problems_with_threads(given.config.run.threads.get()));
  control.agree(problems);
  const int gpu = own_gpu(mpi);
  const RunPlan plan = plan_of(given, capacity, gpu, mpi, control);
  const Runtime runtime(static_cast<int>(given.config.run.threads.get()), gpu);
  Device device;
  Mesh mesh = mpi.mesh(device, plan.ranks, patience, {.copy_engines = given.config.proof.copy_engines});
  const auto made = make_on_all<Decoder>(control, device, plan, mesh);
  Decoder& decoder = *made;
  return or_end_all_ranks(mpi, [&] {
    decoder.initialise([&](StateDict& weights) { load_weights(*given.source, weights, device, control); });
    const NextLogits next = [&](const std::vector<std::int32_t>& ids) {
      return decoder.extend(std::span(ids).subspan(static_cast<std::size_t>(decoder.length())));
    };
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      decoder.restart();
      Output output(options, prompts[i], encoding.get(), mpi.rank() == 0);
      const auto begin = std::chrono::steady_clock::now();
      generate(next, options.sampling, prompts[i].ids, counts[i],
               [&](std::int32_t id) { return !ends.contains(id) && output.token(id); });
      output.end(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return 0;
  });
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  return on_all_ranks([&](Mpi& mpi, Control& control) { return generate_text(options, mpi, control); });
}

}  // namespace tessera
