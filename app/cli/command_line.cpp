#include "app/cli/command_line.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "app/cli/build.hpp"
#include "app/cli/ranks.hpp"
#include "app/cli/waiting.hpp"
#include "app/training/start/changes.hpp"
#include "app/verbs/verbs.hpp"
#include "core/config/keys.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

using Verb = std::function<int()>;

std::vector<Override> overrides_of(const std::vector<std::string>& arguments) {
  std::vector<Override> overrides;
  for (const std::string& argument : arguments) overrides.push_back(override_of(argument));
  return overrides;
}

std::vector<std::string> quantized_formats() {
  std::vector<std::string> names;
  for (int i = 0; i < formats::Registry::size; ++i)
    if (const FormatTraits traits = traits_of(static_cast<FormatId>(i)); !traits.plain && !traits.by_lines)
      names.emplace_back(traits.name);
  return names;
}

std::string unknown(const std::string& word, const char* kind, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  const std::string advice =
      nearest.empty() ? "there are " + fmt::format("{}", fmt::join(known, ", ")) : "did you mean " + nearest + "?";
  return fmt::format("{}: unknown {}, {}", word, kind, advice);
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(verb->get_name());
  return verbs;
}

/// Message about a word in the place of a verb that is not a verb; empty if there is none.
std::string unknown_verb(const CLI::App& app) {
  if (!app.get_subcommands().empty()) return unknown_verb(*app.get_subcommands().front());
  const std::vector<std::string> words = app.remaining(), verbs = verbs_of(app);
  const auto word = std::ranges::find_if(words, [](const std::string& each) { return !each.starts_with("-"); });
  return verbs.empty() || word == words.end() ? "" : unknown(*word, "verb", verbs);
}

/// Suggestion for a command line that CLI11 refused: which verb or option was probably meant; empty without suggestion.
std::string verdict(const CLI::App& app) {
  if (const std::string verb = unknown_verb(app); !verb.empty()) return verb;
  if (!app.get_subcommands().empty()) return verdict(*app.get_subcommands().front());
  const std::vector<std::string> words = app.remaining(), verbs = verbs_of(app);
  const auto option = std::ranges::find_if(words, [](const std::string& word) { return word.starts_with("-"); });
  if (option == words.end()) return verbs.empty() ? "" : fmt::format("a verb is needed: {}", fmt::join(verbs, ", "));
  std::vector<std::string> known;
  for (const CLI::Option* each : app.get_options())
    for (const std::string& name : each->get_lnames()) known.push_back("--" + name);
  return unknown(option->substr(0, option->find('=')), "option", known);
}

/// Refuses NaN, which CLI11 finds in every range.
const CLI::Validator a_number(
    [](const std::string& text) {
      return std::string(std::isnan(std::strtod(text.c_str(), nullptr)) ? "must be a number" : "");
    },
    "");

/// Reads "5,9,33", where CLI11 drops the gap of "5,,33"; nothing, if a part is no number of 32 bits.
std::optional<std::vector<std::int32_t>> ids_in(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const char *at = text.data(), *const end = at + text.size();; ++at) {
    const auto read = std::from_chars(at, end, ids.emplace_back());
    if (read.ec != std::errc() || (read.ptr != end && *read.ptr != ',')) return std::nullopt;
    if (read.ptr == end) return ids;
    at = read.ptr;
  }
}

/// Takes digits as a decimal number, where CLI11 takes those behind a zero as octal, and wraps what has no room.
const CLI::Validator decimal(
    [](std::string& text) {
      if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return std::string();
      text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
      std::uint64_t number = 0;
      const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
      return std::string(read.ec == std::errc() ? "" : text + " is too large");
    },
    "");

/// Takes what CLI11's sizes are: a whole number, and a unit.
const CLI::Validator a_size(
    [](const std::string& text) {
      const std::size_t digits = text.find_first_not_of("0123456789");
      const bool sound = digits != 0 && std::min(digits, text.size()) <= 15;
      return std::string(sound && text.find('.') == std::string::npos
                             ? ""
                             : text + " is no size: a whole number and a unit are needed, as 80GiB");
    },
    "");

/// All verbs with their options; parsing sets `chosen`.
class Parser {
 public:
  Parser() {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", "tessera " + this_build().version);
    app_.failure_message([](const CLI::App* app, const CLI::Error& error) {
      const bool unexpected = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) ||
                              error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
      const std::string better = unexpected ? verdict(*app) : "";
      return (better.empty() ? error.what() : better) + "\nRun with --help for more information.\n";
    });
    app_.footer(
        "Decks and their keys: `tessera explain`.\n"
        "Exit codes: 0 ok, 1 internal, 2 usage, 3 deck, 4 environment, 5 file, 6 numerical, 7 communication, "
        "8 machine, 75 stopped.");
    add_train();
    add_eval();
    add_audit();
    add_generate();
    add_plan();
    add_validate();
    add_explain();
    add_compare();
    add_info();
    add_checkpoint();
    add_quantize();
  }

  /// The verb to run; throws CLI::Error.
  Verb parse(int argc, char* const* argv) {
    argv_ = argv;
    train_.command_line.assign(argv, argv + argc);
    convert_.command_line = train_.command_line;
    app_.parse(argc, argv);
    return chosen_;
  }
  /// Exit code of a command line that runs no verb (help or an error); prints its text if `speaking`.
  int exit(const CLI::Error& error, bool speaking) {
    if (error.get_exit_code() == 0 && !unknown_verb(app_).empty())  // --help of an unknown verb
      return exit(CLI::ExtrasError(app_.remaining(true)), speaking);
    if (speaking) app_.exit(error);
    return error.get_exit_code() == 0 ? 0 : static_cast<int>(Exit::usage);
  }

 private:
  /// Wraps a verb whose OpenMP threads compute.
  Verb computing(const Verb& run) {
    return [this, run] {
      bound_spinning(argv_);
      return run();
    };
  }
  CLI::App* add(const char* name, const char* help, Verb run) {
    CLI::App* const verb = app_.add_subcommand(name, help);
    verb->callback([this, run] { chosen_ = run; });
    return verb;
  }
  void add_deck(CLI::App* verb, std::string& deck) {
    verb->add_option("DECK", deck, "The run's deck (YAML)")->required()->type_name("");
    add_overrides(verb);
  }
  void add_overrides(CLI::App* verb) {
    verb->add_option("--set", set_, "Overrides a key of the deck; may be given again")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  CLI::Option* add_ranks(CLI::App* verb, std::int64_t& ranks, const char* help) {
    return verb->add_option("--ranks", ranks, help)
        ->type_name("N")
        ->transform(decimal)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24).description(""));
  }
  void add_json(CLI::App* verb, Format& format) {
    verb->add_flag_callback(
        "--json", [&format] { format = Format::json; }, "Answer in JSON");
  }

  void add_train() {
    CLI::App* const verb =
        add("train", "Train a model; started by the MPI launcher, one process a rank", computing([this] {
              train_.overrides = overrides_of(set_);
              train_.changes = changeable(allowed_);
              return run_train(train_);
            }));
    add_deck(verb, train_.deck);
    verb->add_option_function<std::string>(
            "--resume", [this](const std::string& text) { train_.resume = resume_of(text); },
            "auto: the newest valid checkpoint of the run directory; none; or a checkpoint")
        ->type_name("auto|none|PATH");
    verb->add_option("--allow-change", allowed_,
                     "Keys that this resume changes: run.steps, optimizer.schedule, batch.global, data.files, ...")
        ->type_name("KEY,...")
        ->delimiter(',')
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    verb->add_option("--stop-at", train_.stop_at, "Save after this step and end with code 75")
        ->type_name("STEP")
        ->transform(decimal)
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40).description(""));
    verb->add_option("--time-limit", train_.time_limit, "Save before so much time has passed and end with code 75")
        ->type_name("HH:MM:SS");
  }
  static void add_ema(CLI::App* verb, const std::function<void()>& choose) {
    verb->add_flag_callback("--ema", choose, "Take the weights' moving averages (optimizer.ema), without other state");
  }
  static void add_best(CLI::App* verb, Chosen& step) {
    verb->add_flag_callback(
        "--best", [&step] { step = Chosen::best; },
        "Of a run directory the step with the lowest evaluation loss, as `checkpoint ls` marks it, not the newest");
  }
  void add_eval() {
    CLI::App* const verb =
        add("eval", "Print a checkpoint's loss, on a deck's windows or on a text; by the MPI launcher or alone",
            computing([this] {
              if (eval_.checkpoint.empty() && eval_.text.empty())
                throw Error(Exit::usage, "eval: --checkpoint PATH is needed beside a deck, or --text FILE beside a "
                                         "checkpoint");
              eval_.overrides = overrides_of(set_);
              return run_eval(eval_);
            }));
    verb->add_option("DECK|MODEL", eval_.deck,
                     "A deck; with --text a step folder, a run directory, a Hugging Face folder, or a run's deck")
        ->required()
        ->type_name("");
    add_overrides(verb);
    CLI::Option* const checkpoint =
        verb->add_option("--checkpoint", eval_.checkpoint, "A step folder, or a run directory: its newest valid step")
            ->type_name("PATH");
    verb->add_option("--text", eval_.text, "UTF-8 text: every token but the first is predicted; -: standard input")
        ->excludes(checkpoint)
        ->check([](const std::string& text) { return std::string(text.empty() ? "is empty" : ""); })
        ->type_name("FILE|-");
    add_best(verb, eval_.step);
    add_ema(verb, [this] { eval_.weights = Taken::averages; });
    add_json(verb, eval_.format);
  }
  void add_audit() {
    CLI::App* const verb =
        add("audit", "Make steps of a run again and compare every bit; by the MPI launcher or alone", computing([this] {
              audit_.overrides = overrides_of(set_);
              return run_audit(audit_);
            }));
    verb->add_option("RUN", audit_.run, "A run directory")->required()->type_name("");
    const auto add_step = [&](const char* name, std::optional<std::int64_t>& step, const char* help) {
      verb->add_option(name, step, help)
          ->type_name("STEP")
          ->transform(decimal)
          ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40).description(""));
    };
    add_step("--from", audit_.from, "The checkpoint to begin with, by default the oldest; 0: the weights first drawn");
    add_step("--to", audit_.to, "The last checkpoint to compare with, by default the newest");
    add_overrides(verb);
    add_json(verb, audit_.format);
  }
  void add_generate() {
    CLI::App* const verb =
        add("generate", "Print text that a model writes; by the MPI launcher or alone",
            computing([this] { return run_generate(generate_); }));
    verb->add_option("MODEL", generate_.model,
                     "A deck (its run's newest step), a checkpoint, a run directory or a Hugging Face folder")
        ->required()
        ->type_name("");
    CLI::Option* const prompt =
        verb->add_option("--prompt", generate_.prompt, "What to continue; -: standard input; without it the deck's")
            ->type_name("TEXT|-");
    verb->add_option_function<std::string>(
            "--prompt-ids", [this](const std::string& text) { generate_.prompt_ids = ids_in(text).value(); },
            "The same as token ids, for a model without a tokenizer")
        ->check([](const std::string& text) {
          return std::string(ids_in(text) ? "" : "an id is missing or none: they are whole numbers, as 5,9,33");
        })
        ->excludes(prompt)
        ->type_name("ID,...");
    verb->add_option("--prompts", generate_.prompts,
                     "A file with a prompt a line; in a .jsonl each is a JSON text, or an object with one in prompt")
        ->excludes(prompt)
        ->excludes("--prompt-ids")
        ->type_name("FILE");
    verb->add_option("--stop", generate_.stops, "An answer ends before this text; may be given again")
        ->check([](const std::string& text) { return text.empty() ? "an empty text ends everything" : std::string(); })
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false)
        ->type_name("TEXT");
    verb->add_option("--tokens", generate_.tokens, "How many to generate (128, or as many as there is room for)")
        ->type_name("N")
        ->transform(decimal)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24).description(""));
    Sampling& sampling = generate_.sampling;
    verb->add_option("--temperature", sampling.temperature, "Logits are divided by it (0.8); 0: the most likely token")
        ->type_name("T")
        ->check(a_number)
        ->check(CLI::Range(0.0, 1e6).description(""));
    verb->add_option("--top-k", sampling.top_k, "Draw from the K most likely alone; 0: from all")
        ->type_name("K")
        ->transform(decimal)
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24).description(""));
    verb->add_option("--top-p", sampling.top_p, "Draw from the fewest that together have this probability")
        ->type_name("P")
        ->check(a_number)
        ->check(CLI::Range(1e-9, 1.0).description(""));
    verb->add_option("--seed", sampling.seed, "Of the random numbers (1234)")
        ->transform(decimal)
        ->check([](const std::string& seed) { return std::string(seed.starts_with('-') ? "is negative" : ""); })
        ->type_name("S");
    add_best(verb, generate_.step);
    add_ema(verb, [this] { generate_.weights = Taken::averages; });
    add_json(verb, generate_.format);
  }
  void add_plan() {
    CLI::App* const verb = add("plan", "Print memory per rank, collectives, groups and owners of a run", [this] {
      plan_.overrides = overrides_of(set_);
      return run_plan(plan_);
    });
    add_deck(verb, plan_.deck);
    add_ranks(verb, plan_.ranks, "Ranks of the planned run")->required();
    verb->add_option("--hosts", plan_.hosts, "Hosts of equally many ranks: show the bytes inside and across hosts")
        ->type_name("H")
        ->transform(decimal)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24).description(""));
    verb->add_option("--memory", plan_.memory, "What a rank has, as 80GiB: say whether the run fits")
        ->transform(CLI::AsSizeValue(true).description(""))
        ->transform(a_size)
        ->check([](const std::string& bytes) { return bytes == "0" ? "a rank needs some memory" : ""; })
        ->type_name("SIZE");
    verb->add_flag_callback(
        "--verbose", [this] { plan_.detail = Detail::all; }, "List groups, owners, gathers and collectives too");
    add_json(verb, plan_.format);
  }
  void add_validate() {
    CLI::App* const verb =
        add("validate", "Check a deck, its files and this machine as train would; print every value and the corpus",
            [this] {
              validate_.overrides = overrides_of(set_);
              return run_validate(validate_);
            });
    add_deck(verb, validate_.deck);
    add_ranks(verb, validate_.ranks, "Ranks of the run to be; without it 1");
  }
  void add_explain() {
    CLI::App* const verb = add("explain", "Explain a key or a section of the deck, or all of them",
                               [this] {
                                 if (explain_.deck.empty() && !set_.empty())
                                   throw Error(Exit::usage, "--set changes a deck's value: name the deck by --deck");
                                 explain_.overrides = overrides_of(set_);
                                 return run_explain(explain_);
                               });
    verb->add_option("KEY", explain_.key, "As optimizer.lr, or optimizer")->type_name("");
    verb->add_option("--deck", explain_.deck, "Tell its values, and where each comes from")->type_name("DECK");
    add_overrides(verb);
  }
  void add_compare() {
    CLI::App* const verb = add("compare", "Put runs side by side: losses, throughput and differing settings",
                               [this] { return run_compare(compare_); });
    verb->add_option("RUN", compare_.runs, "Run directories; two files with --trace")->required()->type_name("");
    CLI::Option* const page =
        verb->add_option("--out", compare_.out, "The page to write; without it compare.html, or with --json none")
            ->type_name("PAGE");
    CLI::Option* const by =
        verb->add_option("--by", compare_.by,
                         "A key, as run.seed: means over its values with standard errors, and differences, pair by "
                         "pair, to the first run's group")
            ->type_name("KEY");
    verb->add_flag("--trace", compare_.trace,
                   "Compare two files of debug.trace: the first step, stage and tensor that differ; code 1 if any does")
        ->excludes(page)
        ->excludes(by);
    add_json(verb, compare_.format);
  }
  void add_info() {
    CLI::App* const verb = add("info", "Print versions, back end and libraries", [this] { return run_info(info_); });
    add_json(verb, info_.format);
  }

  void add_checkpoint() {
    CLI::App* const group = app_.add_subcommand(
        "checkpoint", "List, inspect, verify, compare, convert and remove checkpoints; needs no launcher");
    group->require_subcommand(1);
    constexpr const char* one = "A step folder, or a run directory: its newest valid step";
    const auto verb = [&](const char* name, const char* help, const char* path, int (*run)(const CheckpointOptions&)) {
      CLI::App* const made = group->add_subcommand(name, help);
      made->callback([this, run] { chosen_ = [this, run] { return run(checkpoint_); }; });
      made->add_option("PATH", checkpoint_.path, path)->required()->type_name("");
      add_json(made, checkpoint_.format);
      return made;
    };
    verb("ls", "List the checkpoints of a run directory; valid: complete, all but weights and moments read",
         "A run directory, or a step folder", run_checkpoint_ls);
    verb("inspect", "Print what a checkpoint holds", one, run_checkpoint_inspect);
    verb("verify", "Read every byte and compare digests", "A step folder, or a run directory: every step in it",
         run_checkpoint_verify);
    verb("diff", "Compare two checkpoints; code 1 where they differ", one, run_checkpoint_diff)
        ->add_option("OTHER", checkpoint_.other, "The other one")
        ->required()
        ->type_name("");
    add_convert(group);
    add_rm(group);
  }
  void add_rm(CLI::App* group) {
    CLI::App* const verb = group->add_subcommand(
        "rm", "Remove checkpoints of a run that does not train now; the newest valid one stays");
    verb->callback([this] { chosen_ = [this] { return run_checkpoint_rm(rm_); }; });
    verb->add_option("RUN", rm_.run, "A run directory")->required()->type_name("");
    verb->add_option("STEP", rm_.steps, "Steps to remove, as `ls` lists them")
        ->type_name("")
        ->transform(decimal)
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40).description(""));
    verb->add_flag_callback(
        "--abandoned", [this] { rm_.abandoned = Abandoned::removed; },
        "Remove those that branches have left behind; their rows stay");
    verb->add_flag_callback("--dry-run", [this] { rm_.doing = Doing::nothing; }, "Say what would be removed");
    add_json(verb, rm_.format);
  }
  void add_convert(CLI::App* group) {
    CLI::App* const verb = group->add_subcommand(
        "convert",
        "Rewrite a checkpoint: expert layout, type, with or without optimizer state, from and to safetensors");
    verb->callback([this] { chosen_ = [this] { return run_checkpoint_convert(convert_); }; });
    verb->footer(
        "SRC with config.json and safetensors (Hugging Face: GPT-2, Llama, Mistral, Qwen and mixtures) becomes a "
        "checkpoint of step 0, "
        "weights only, to start from with checkpoint.init_from. Every digest of SRC is checked on the way.");
    verb->add_option("SRC", convert_.from,
                     "A step folder, a run directory (its newest valid step) or a Hugging Face folder")
        ->required()
        ->type_name("");
    verb->add_option("DST", convert_.to, "The folder to make; must not exist")->required()->type_name("");
    add_choice(verb, "--experts", "Expert weights in files: one dataset a projection, or one an expert",
               {"single", "discrete"},
               [this](const std::string& text) { convert_.experts = choice_named<ExpertWeights>(text); });
    add_choice(verb, "--dtype", "Type of the weights; without it fp32, in safetensors as in SRC", {"fp32", "bf16"},
               [this](const std::string& text) { convert_.type = text == "fp32" ? DType::f32 : DType::bf16; });
    add_choice(verb, "--to", "What DST is: a checkpoint, or a Hugging Face folder", {"tessera", "safetensors"},
               [this](const std::string& text) { convert_.target = choice_named<Target>(text).value(); });
    verb->add_flag_callback(
        "--weights-only", [this] { convert_.extent = Extent::weights; }, "Leave optimizer state out");
    add_best(verb, convert_.step);
    add_ema(verb, [this] { convert_.extent = Extent::averages; });
    verb->add_option("--upcycle", convert_.upcycling,
                     "Make a mixture of a dense model, each expert a copy of its layer: experts=8,top_k=2"
                     "[,first_dense=][,every=][,seed=]")
        ->check([](const std::string& text) { return std::string(text.empty() ? "is empty: experts=8,top_k=2" : ""); })
        ->type_name("TEXT");
    verb->add_flag("--codes", convert_.codes,
                   "With --to safetensors: weights as the codes that training multiplies, all else in bf16");
    add_choice(verb, "--layout", "The tensors of nvfp4 codes: those of compressed-tensors, or of Model Optimizer",
               {"compressed", "modelopt"},
               [this](const std::string& text) { convert_.layout = choice_named<CodesLayout>(text); });
    verb->add_option("--max-shard", convert_.shard_bytes, "Most that one safetensors file holds, as 5GB")
        ->transform(CLI::AsSizeValue(true).description(""))
        ->transform(a_size)
        ->check([](const std::string& bytes) { return bytes == "0" ? "a file of 0 bytes holds nothing" : ""; })
        ->type_name("SIZE");
    add_json(verb, convert_.format);
  }
  /// `also`: whether a text that is not in the list is allowed too.
  CLI::Option* add_choice(
      CLI::App* verb, const char* name, const char* help, const std::vector<std::string>& allowed,
      const std::function<void(const std::string&)>& take,
      const std::function<bool(const std::string&)>& also = [](const std::string&) { return false; }) {
    const CLI::Validator listed = CLI::IsMember(allowed);
    return verb->add_option_function<std::string>(name, take, help)
        ->type_name(fmt::format("{}", fmt::join(allowed, "|")))
        ->check([=](const std::string& text) { return also(text) ? std::string() : listed(text); });
  }

  void add_quantize() {
    CLI::App* const verb = add("quantize", "Quantize the tensors of a file, with error statistics",
                               computing([this] { return run_quantize(quantize_); }));
    verb->add_option("IN", quantize_.in, "A .safetensors or HDF5 file, or a run or step: its model.h5")
        ->required()
        ->type_name("");
    verb->add_option("--tensor", quantize_.tensors,
                     "A tensor's name; may be given again; none: all of 2 and 3 dimensions, or all held as codes")
        ->type_name("NAME")
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    add_choice(verb, "--format",
               "What to quantize to, or a format in words, as int4_1x64_e8m0; without it a run's or step's weights as "
               "training holds them",
               quantized_formats(), [this](const std::string& text) { quantize_.format = find_format(text).value(); },
               [](const std::string& text) {
                 const auto format = find_format(text);
                 return format && (formats::is_described(*format) || traits_of(*format).by_lines);  // refused by file
               });
    verb->add_option("--out", quantize_.out, "The HDF5 file to write; must not exist")->required()->type_name("OUT");
    verb->add_flag_callback(
        "--no-bf16", [this] { quantize_.precision = Precision::as_given; },
        "Quantize fp32 values as they are, not rounded to bf16 first");
    add_json(verb, quantize_.answer);
  }

  CLI::App app_{"Tessera trains GPT and mixture-of-experts language models with sharded optimizers.", "tessera"};
  Verb chosen_;
  char* const* argv_ = nullptr;
  std::vector<std::string> set_, allowed_;
  TrainOptions train_;
  EvalOptions eval_;
  AuditOptions audit_;
  GenerateOptions generate_;
  PlanOptions plan_;
  ValidateOptions validate_;
  ExplainOptions explain_;
  CompareOptions compare_;
  InfoOptions info_;
  CheckpointOptions checkpoint_;
  CheckpointConvertOptions convert_;
  CheckpointRmOptions rm_;
  QuantizeOptions quantize_;
};

/// Whether this process prints errors of the command line. All ranks of a launch parse it before MPI starts, and only
/// the first may print; verbs that are no part of a launch always do.
bool speaks(int argc, char* const* argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  return (verb != "train" && verb != "eval" && verb != "audit" && verb != "generate") || first_of_launch();
}

int run_verb(const Verb& verb, bool speaking) {
  try {
    return verb();
  } catch (const Error& error) {
    if (speaking || error.code() != Exit::usage) fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::system_error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(Exit::environment);
  } catch (const std::exception& error) {
    fmt::print(stderr, "internal error: {}\n", error.what());
    return static_cast<int>(Exit::internal);
  }
}

}  // namespace

int run_command_line(int argc, char* const* argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write that meets it
  Parser parser;
  Verb verb;
  int code = 0;
  const bool speaking = speaks(argc, argv);
  try {
    verb = parser.parse(argc, argv);
  } catch (const CLI::Error& error) {
    code = parser.exit(error, speaking);
  }
  if (verb) code = run_verb(verb, speaking);
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || code != 0) return code;
  fmt::print(stderr, "standard output cannot be written\n");
  return static_cast<int>(Exit::environment);
}

}  // namespace tessera
