#include "io/deck/deck.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/config/keys.hpp"
#include "core/config/retired.hpp"
#include "core/config/values.hpp"
#include "tests/support/drawn_keys.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

using List = std::vector<std::string>;

const std::string small = R"(schema_version: 1
run: {name: small, steps: 10}
model: {layers: 2, hidden: 64, heads: 4, seq_len: 32}
data: {files: ["*.txt"]}
batch: {global: 8, micro: 2}
)";

List texts(const Problems& problems) {
  List list;
  for (const Problem& problem : problems.list()) {
    EXPECT_EQ(problem.code, Exit::deck);
    list.push_back(problem.text);
  }
  return list;
}

Deck sound(const std::string& text, const std::vector<Override>& overrides = {}) {
  Problems problems;
  Deck deck = parse_deck(text, "/decks/small.yaml", overrides, problems);
  EXPECT_EQ(texts(problems), List{});
  return deck;
}

List errors(const std::string& text, const std::vector<Override>& overrides = {}) {
  Problems problems;
  parse_deck(text, "d.yaml", overrides, problems);
  return texts(problems);
}

/// Errors of the small deck with `line` added as its sixth line.
List errors_with(const std::string& line) { return errors(small + line + "\n"); }
List errors_set(const std::string& argument) { return errors(small, {override_of(argument)}); }

TEST(Deck, ReadsTheSmallestDeck) {
  const Deck deck = sound(small);
  EXPECT_EQ(deck.config.run.name, "small");
  EXPECT_EQ(deck.config.model.hidden, 64);
  EXPECT_EQ(deck.config.model.head_dim.get(), 16);
  EXPECT_FALSE(deck.config.model.moe);
  EXPECT_EQ(deck.config.data.root.get(), "/decks");
  EXPECT_EQ(deck.config.data.files, List{"*.txt"});
}

/// Expects that every key was given by `source`, with the drawn value.
void expect_drawn(const Deck& deck, const test::DrawnKeys& drawn, Source source) {
  EXPECT_EQ(drawn.unlike(values_of(deck.config)), List{});
  for (const auto& [key, value] : drawn.given) {
    const auto origin = deck.provenance.origins.find(key);
    ASSERT_NE(origin, deck.provenance.origins.end()) << key;
    EXPECT_EQ(name_of(origin->second.source), name_of(source)) << key;
  }
}

// Decks whose every key has another value than its default. Drawn values contradict each other, which is told beside.
TEST(Deck, ReadsEveryKey) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    RunConfig config;
    test::DrawnKeys drawn(seed);
    RunConfig::visit(config, drawn);
    Problems contradictions;
    expect_drawn(parse_deck(resolved_text({config, {}}), "/decks/every_key.yaml", {}, contradictions), drawn,
                 Source::deck);
    std::vector<Override> overrides;
    for (const auto& [key, value] : drawn.given) overrides.push_back({key, value});
    expect_drawn(parse_deck(small, "/decks/small.yaml", overrides, contradictions), drawn, Source::override);
  }
}

TEST(Deck, ReadsValuesAsYamlWritesThem) {
  const RunConfig config = sound(R"(
schema_version: 1
run: {name: all, seed: 18446744073709551615, steps: +200, mfu_peak: 1.5}
model:
  {layers: 4, hidden: 256, heads: 4, seq_len: 128, norm_eps: 1e-6, rope_base: 5.0e5, position: rotary, vocab: 1000}
data: {kind: tokens, root: ../corpus, files: [a.bin, "b c.bin"], tokenizer: ../tok.json}
batch:
  global: 32
  micro: 4
sample: {prompt: "The \"one\"\n"}
optimizer: {lr: 1e-3, weight_decay: 0, min_lr: 1.0E-4}
checkpoint: {mpio_hints: {striping_factor: 8, romio_cb_write: "enable"}}
)").config;
  EXPECT_EQ(config.run.name, "all");
  EXPECT_EQ(config.run.seed, 18446744073709551615u);
  EXPECT_EQ(config.run.steps, 200);
  EXPECT_EQ(config.run.mfu_peak, 1.5);
  EXPECT_EQ(config.model.norm_eps, 1e-6);
  EXPECT_EQ(config.model.rope_base, 5e5);
  EXPECT_EQ(config.data.root.get(), "/corpus");
  EXPECT_EQ(config.data.files, (List{"a.bin", "b c.bin"}));
  EXPECT_EQ(config.data.tokenizer, "/tok.json");
  EXPECT_EQ(config.batch.micro, 4);
  EXPECT_EQ(config.sample.prompt, "The \"one\"\n");
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.optimizer.min_lr, 1e-4);
  EXPECT_EQ(config.checkpoint.mpio_hints,
            (std::map<std::string, std::string>{{"romio_cb_write", "enable"}, {"striping_factor", "8"}}));
}

TEST(Deck, KnowsWhoGaveEachValue) {
  const Deck deck = sound(small, {{"optimizer.lr", "1e-3"}});
  const auto& origins = deck.provenance.origins;
  EXPECT_EQ(origins.at("run.steps").source, Source::deck);
  EXPECT_EQ(origins.at("run.steps").where, "/decks/small.yaml:2:27");
  EXPECT_EQ(origins.at("optimizer.lr").source, Source::override);
  EXPECT_EQ(origins.at("optimizer.lr").where, "--set optimizer.lr=1e-3");
  EXPECT_EQ(origins.at("optimizer.eps").source, Source::standard);
  EXPECT_EQ(origins.at("model.ffn").source, Source::derived);
  EXPECT_EQ(deck.provenance.located({{"model.ffn", "batch.global"}, "wrong"}),
            "/decks/small.yaml:5:17: model.ffn: wrong");
}

TEST(Deck, ResolvedTextReadsBackToTheSameConfig) {
  for (const std::string& extra : {std::string(), std::string("sample: {prompt: \"a\\tb # 'x' \\\"\\u00e9\\\\\\n\"}\n"),
                                   std::string("optimizer: {lr: 0.1234567890123456789, eps: 1.0e-12}\n"),
                                   std::string("checkpoint: {mpio_hints: {cb_nodes: 4, b: \"x: {#\"}}\n")}) {
    Deck deck = sound(small + extra, {{"model.moe.experts", "4"}, {"model.moe.top_k", "1"}});
    deck.config.run.threads = 2;
    const std::string text = resolved_text(deck);
    const Deck again = sound(text);
    EXPECT_EQ(again.config, deck.config) << text;
    EXPECT_EQ(resolved_text({again.config, deck.provenance}), text);
  }
}

TEST(Deck, ResolvedTextMarksEveryValue) {
  const std::string text = resolved_text(sound(small, {{"optimizer.lr", "1e-3"}}));
  for (const char* line : {"schema_version: 1  # deck\n", "  name: \"small\"  # deck\n", "  lr: 0.001  # override\n",
                           "  ffn: 256  # derived\n", "  eps: 1e-08  # default\n", "  files: [\"*.txt\"]  # deck\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  // A config that was not read from a text has no origins.
  EXPECT_EQ(resolved_text({sound(small).config, {}}).find("  # "), std::string::npos);
}

TEST(Override, ReplacesAndAdds) {
  const std::vector<Override> overrides = {{"run.steps", "20"}, {"data.files", "[a.txt, 'b, c.txt']"},
                                           {"sample.prompt", "a: b # c "}, {"run.steps", "30"}, {"debug.trace", ""}};
  const RunConfig config = sound(small, overrides).config;
  EXPECT_EQ(config.run.steps, 30);
  EXPECT_EQ(config.data.files, (List{"a.txt", "b, c.txt"}));
  EXPECT_EQ(config.sample.prompt, "a: b # c ");
  EXPECT_EQ(config.debug.trace, "");
}

TEST(Override, MendsABrokenValue) {
  EXPECT_EQ(errors(small + "optimizer: {lr: fast}\n", {{"optimizer.lr", "1"}}), List{});
}

TEST(Override, ErrorsNameTheArgument) {
  EXPECT_EQ(errors_set("optimizer.lr=abc"),
            List{"--set optimizer.lr=abc: optimizer.lr: abc is not a number, allowed 0 to 1000"});
  EXPECT_EQ(errors_set("optimizer.rl=1"),
            List{"--set optimizer.rl=1: optimizer.rl: unknown key, did you mean optimizer.lr?"});
  EXPECT_EQ(errors_set("model=3"), List{"--set model=3: model: is a section, set one of its keys"});
  EXPECT_EQ(errors_set("run.steps.x=3"), List{"--set run.steps.x=3: run.steps.x: unknown key"});
  EXPECT_EQ(errors_set("data.files=a.txt"),
            List{"--set data.files=a.txt: data.files: a.txt is not a list of texts, allowed [one line of text, ...]"});
  EXPECT_EQ(errors_set("data.files=[a"), List{"--set data.files=[a: not YAML: end of sequence flow not found"});
  EXPECT_EQ(errors_set("batch.micro=3"),
            List{"--set batch.micro=3: batch.global: 8 is no multiple of micro 3: use batch.micro 1, 2, 4 or 8, or "
                 "batch.global 6 or 9"});
  EXPECT_EQ(errors_set("run.name=\xff"), List{"--set run.name=\xff: not text: byte 0xff is no UTF-8 here"});
  EXPECT_EQ(errors_set("model.moe.experts=4"),
            List{"--set model.moe.experts=4: model.moe.top_k: missing: an integer is needed, allowed 1 to 65536"});
}

TEST(Override, MustReadKeyEqualsValue) {
  for (const char* argument : {"optimizer.lr", "=3", ""}) {
    try {
      override_of(argument);
      FAIL() << argument;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::usage);
    }
  }
  EXPECT_EQ(override_of("sample.prompt=a=b").value, "a=b");
}

TEST(BadDeck, ReportsEverythingAtOnceInOrder) {
  EXPECT_EQ(errors(R"(schema_version: 2
run: {steps: -1, seed: -1}
model:
  layers: abc
  hidden: 100
  heads: 3
  norm: rmss
  seq_len: 1e3
  tied_head: yes
pipeline_stages: 2
batch: {global: 7, micro: 2}
)", {{"optimizer.lr", "-1"}}),
            (List{"d.yaml:1:1: data.files: missing: a list of texts is needed, allowed one line of text",
                  "d.yaml:1:17: schema_version: 2 is out of range, allowed 1",
                  "d.yaml:2:14: run.steps: -1 is out of range, allowed 0 to 1000000000000",
                  "d.yaml:2:24: run.seed: -1 is out of range, allowed >= 0",
                  "d.yaml:4:11: model.layers: abc is not an integer, allowed 1 to 10000",
                  "d.yaml:7:9: model.norm: rmss is none of the choices, allowed layer | rms, did you mean rms?",
                  "d.yaml:8:12: model.seq_len: 1e3 is not an integer, allowed 1 to 16777216",
                  "d.yaml:9:14: model.tied_head: yes is not a boolean, allowed true | false",
                  "d.yaml:10:1: pipeline_stages: unknown key",
                  "--set optimizer.lr=-1: optimizer.lr: -1 is out of range, allowed 0 to 1000",
                  "d.yaml:6:10: model.heads: 3 heads do not divide hidden 100: change one of them, or give "
                  "model.head_dim",
                  "d.yaml:11:17: batch.global: 7 is no multiple of micro 2: use batch.micro 1 or 7, or "
                  "batch.global 6 or 8"}));
}

TEST(BadDeck, ShardingGroupsAreWordsOrNumbers) {
  for (const char* value : {"hots", "0", "65537", "1.5", "-2", "[2]", "01"}) {
    const List errors = errors_with("parallel: {sharding_group: " + std::string(value) + "}");
    ASSERT_EQ(errors.size(), 1u) << value;
    EXPECT_NE(errors.front().find("allowed all | host | 1 to 65536"), std::string::npos) << errors.front();
  }
  EXPECT_EQ(errors_with("parallel: {sharding_group: hots}"),
            List{"d.yaml:6:28: parallel.sharding_group: hots is not a word that is allowed, or an integer, allowed "
                 "all | host | 1 to 65536, did you mean host?"});
}

TEST(BadDeck, UnknownKeys) {
  EXPECT_EQ(errors_with("optimzer: {lr: 1}"), List{"d.yaml:6:1: optimzer: unknown key, did you mean optimizer?"});
  EXPECT_EQ(errors_with("eval: {every_step: 1}"),
            List{"d.yaml:6:8: eval.every_step: unknown key, did you mean eval.every_steps?"});
  EXPECT_EQ(errors_with("eval: {lr: 1}"), List{"d.yaml:6:8: eval.lr: unknown key, did you mean optimizer.lr?"});
  EXPECT_EQ(errors_with("eval: {val_files: [a]}"),
            List{"d.yaml:6:8: eval.val_files: unknown key, did you mean data.eval_files?"});
  EXPECT_EQ(errors_with("eval: {label_smoothing: 0.1}"),
            List{"d.yaml:6:8: eval.label_smoothing: unknown key: no label smoothing: the loss is the plain cross "
                 "entropy"});
  EXPECT_EQ(errors_with("<<: {lr: 1}"), List{"d.yaml:6:1: \"<<\": unknown key"});
  EXPECT_EQ(errors_with("\"a\\nb\": 1"), List{"d.yaml:6:1: \"a\\nb\": unknown key"});
}

TEST(BadDeck, KeysOfFeaturesToComeAreUnknown) {
  for (const char* line : {"parallel: {pipeline: 1}", "precision: {scaling: delayed}"}) {
    const List found = errors_with(line);
    ASSERT_EQ(found.size(), 1u) << line;
    EXPECT_NE(found[0].find(": unknown key"), std::string::npos) << found[0];
  }
}

TEST(BadDeck, DuplicateKeys) {
  EXPECT_EQ(errors_with("run: {steps: 3}"), List{"d.yaml:6:1: run: given twice, first at d.yaml:2:1: keep one"});
  EXPECT_EQ(errors_with("eval:\n  batches: 1\n  batches: 1"),
            List{"d.yaml:8:3: eval.batches: given twice, first at d.yaml:7:3: keep one"});
}

TEST(BadDeck, WrongTypes) {
  EXPECT_EQ(errors_with("eval: {batches: [1]}"),
            List{"d.yaml:6:17: eval.batches: a list is not an integer, allowed 1 to 16777216"});
  EXPECT_EQ(errors_with("eval: {batches: {a: 1}}"),
            List{"d.yaml:6:17: eval.batches: a section is not an integer, allowed 1 to 16777216"});
  EXPECT_EQ(errors_with("eval: {batches: \"1\"}"),
            List{"d.yaml:6:17: eval.batches: \"1\" is not an integer, allowed 1 to 16777216"});
  EXPECT_EQ(errors_with("eval: {batches: 1.0}"),
            List{"d.yaml:6:17: eval.batches: 1.0 is not an integer, allowed 1 to 16777216"});
  EXPECT_EQ(errors_with("eval: {batches: 010}"),
            List{"d.yaml:6:17: eval.batches: 010 is not an integer, allowed 1 to 16777216"});
  EXPECT_EQ(errors_with("sample: {prompt: [a]}"),
            List{"d.yaml:6:18: sample.prompt: a list is not a text, allowed any text"});
  EXPECT_EQ(errors_with("proof: {gather_overlap: 1}"),
            List{"d.yaml:6:25: proof.gather_overlap: 1 is not a boolean, allowed true | false"});
  EXPECT_EQ(errors_with("optimizer: {lr: 1e-3x}"),
            List{"d.yaml:6:17: optimizer.lr: 1e-3x is not a number, allowed 0 to 1000"});
  EXPECT_EQ(errors_with("recompute: {mode: selective, modules: mlp}"),
            List{"d.yaml:6:39: recompute.modules: mlp is not a list of choices, allowed "
                 "[attention | mlp | norm | moe | activation | codes, ...]"});
  EXPECT_EQ(errors_with("recompute: {mode: selective, modules: [mlp, attn]}"),
            List{"d.yaml:6:39: recompute.modules: attn is none of the choices, allowed attention | mlp | norm | moe | "
                 "activation | codes"});
  EXPECT_EQ(errors_with("recompute: {mode: selective, modules: [mlp, mlp]}"),
            List{"d.yaml:6:39: recompute.modules: mlp is listed twice"});
  EXPECT_EQ(errors_set("data.mixture=0.5"),
            List{"--set data.mixture=0.5: data.mixture: 0.5 is not a list of numbers, allowed [(0, 1000000], ...]"});
  EXPECT_EQ(errors_set("data.mixture=[1, 0]"),
            List{"--set data.mixture=[1, 0]: data.mixture: 0 is out of range, allowed (0, 1000000]"});
  EXPECT_EQ(errors_with("checkpoint: {mpio_hints: [a]}"),
            List{"d.yaml:6:26: checkpoint.mpio_hints: a list is not a map of texts, allowed "
                 "{name: one line of text, ...}"});
  EXPECT_EQ(errors_with("checkpoint: {mpio_hints: {a: 1, a: 2}}"),
            List{"d.yaml:6:26: checkpoint.mpio_hints: a is given twice"});
  EXPECT_EQ(errors_with("checkpoint: {mpio_hints: {a: }}"),
            List{"d.yaml:6:26: checkpoint.mpio_hints: a: has no value: a text is needed, allowed one line of text"});
  EXPECT_EQ(errors_with("checkpoint: {mpio_hints: {\"a b\": c}}"),
            List{"d.yaml:6:26: checkpoint.mpio_hints: \"a b\" is no name: letters, digits and _ make one"});
  EXPECT_EQ(errors_with("eval: [1]"), List{"d.yaml:6:7: eval: a list is not a section of keys and values"});
  EXPECT_EQ(errors_with("eval: 3"), List{"d.yaml:6:7: eval: 3 is not a section of keys and values"});
}

TEST(BadDeck, RetiredKeysSayWhatBecameOfThem) {
  EXPECT_EQ(errors_with("gather: {wire: bf16, granularity: unit}"),
            (List{"d.yaml:6:10: gather.wire: is proof.wire now, with the same values",
                  "d.yaml:6:35: gather.granularity: unit is block now, with the same meaning"}));
  EXPECT_EQ(errors_set("model.kind=gpt"),
            List{"--set model.kind=gpt: model.kind: is no key any more: gpt was its only value; leave it out"});
  EXPECT_EQ(errors_with("reduce: {order: library}"),
            List{"d.yaml:6:17: reduce.order: library is gone: rank gives the same bits on every back end"});
  for (const Retired& old : retired()) {
    const std::string value(old.value.empty() ? "true" : old.value), key(old.key);
    EXPECT_EQ(errors_set(key + "=" + value), List{"--set " + key + "=" + value + ": " + key + ": " + refusal_of(old)});
    if (!old.value.empty()) continue;
    EXPECT_FALSE(find_key(key)) << key;
    EXPECT_TRUE(old.now.empty() || find_key(old.now)) << old.now;
  }
}

TEST(StoredDeck, GivesRetiredKeysTheirPlaceOfToday) {
  const std::string now = resolved_text(sound(small, {{"proof.wire", "bf16"},
                                                      {"proof.gather_overlap", "false"},
                                                      {"proof.graph", "false"},
                                                      {"precision.recipe", "nvfp4"},
                                                      {"sharding", "optimizer"}}));
  std::string then = now.substr(0, now.find("proof:"));
  const auto give = [&](const std::string& section, const std::string& line) {
    const std::size_t at = then.find("\n" + section + ":\n");
    ASSERT_NE(at, std::string::npos) << section;
    then.insert(at + section.size() + 3, "  " + line + "\n");
  };
  give("gather", "wire: bf16");
  give("gather", "overlap: false");
  then.replace(then.find("order: rank"), 11, "order: library");
  give("run", "graph: false");
  give("run", "determinism: repeat");
  give("model", "kind: gpt");
  const Deck read = parse_saved_deck(then, "/runs/small/deck.resolved.yaml");
  EXPECT_EQ(read.config.proof.wire, GatherWire::bf16);
  EXPECT_FALSE(read.config.proof.gather_overlap || read.config.proof.graph);
  EXPECT_TRUE(read.config.proof.reduce_overlap);
}

// What a stored deck does not name is what its program had built in; what a new deck leaves out is the default.
TEST(StoredDeck, HasWhatWasBuiltInWhenItWasStored) {
  const Deck written = sound(small);
  EXPECT_EQ(written.config.data.eval_windows, EvalWindows::drawn);
  std::string then = resolved_text(written);
  EXPECT_EQ(parse_saved_deck(then, "now.yaml").config.data.eval_windows, EvalWindows::drawn);
  for (const auto& [key, value] : built_in()) {
    const std::size_t at = then.find("  " + std::string(key.substr(key.rfind('.') + 1)) + ":");
    ASSERT_NE(at, std::string::npos) << key;
    then.erase(at, then.find('\n', at) + 1 - at);
  }
  EXPECT_EQ(parse_saved_deck(then, "then.yaml").config.data.eval_windows, EvalWindows::tail);
}

TEST(BadDeck, MissingValues) {
  EXPECT_EQ(errors_with("eval:"), List{"d.yaml:6:1: eval: has no keys: give it some, or leave it out"});
  EXPECT_EQ(errors_with("sample: {prompt: ~}"),
            List{"d.yaml:6:10: sample.prompt: has no value: a text is needed, allowed any text"});
  EXPECT_EQ(errors_with("sample: {prompt: , tokens: }"),
            (List{"d.yaml:6:10: sample.prompt: has no value: a text is needed, allowed any text",
                  "d.yaml:6:20: sample.tokens: has no value: an integer is needed, allowed 0 to 1048576"}));
  EXPECT_EQ(errors_with("eval:\n  every_steps:\n\n\n  batches: 1\ngather:\n\nproof:\n  reduce_overlap: # none\n"),
            (List{"d.yaml:7:3: eval.every_steps: has no value: an integer is needed, allowed 0 to 1000000000000",
                  "d.yaml:11:1: gather: has no keys: give it some, or leave it out",
                  "d.yaml:14:3: proof.reduce_overlap: has no value: a boolean is needed, allowed true | false"}));
  EXPECT_EQ(errors("schema_version: 1\nrun: {steps: 1}\nmodel: {layers: 1, hidden: 8, heads: 1, seq_len: 8}\n"
                   "data: {files: []}\nbatch: {global: 1}\n"),
            (List{"d.yaml:4:15: data.files: is an empty list: at least one is needed",
                  "d.yaml:5:8: batch.micro: missing: an integer is needed, allowed 1 to 16777216"}));
}

TEST(BadDeck, OutOfRangeAndNotFinite) {
  EXPECT_EQ(errors_with("eval: {batches: 99999999999999999999}"),
            List{"d.yaml:6:17: eval.batches: 99999999999999999999 is out of range, allowed 1 to 16777216"});
  for (const char* word : {".nan", ".inf", "-.inf", "nan", "inf", "-inf"})
    EXPECT_EQ(errors_with(std::string("optimizer: {lr: ") + word + "}"),
              List{std::string("d.yaml:6:17: optimizer.lr: ") + word + " is not finite, allowed 0 to 1000"});
  EXPECT_EQ(errors_with("optimizer: {lr: 1e999}"),
            List{"d.yaml:6:17: optimizer.lr: 1e999 is out of range, allowed 0 to 1000"});
  EXPECT_EQ(errors_with("optimizer: {beta2: 1}"),
            List{"d.yaml:6:20: optimizer.beta2: 1 is out of range, allowed [0, 1)"});
  EXPECT_EQ(errors_with("debug: {trace: \"a\\nb\"}"),
            List{"d.yaml:6:16: debug.trace: \"a\\nb\" is out of range, allowed one line of text, or none"});
}

TEST(BadDeck, MistakesInYamlComeWithARemedy) {
  for (const char* pattern : {"*.txt", "*", "*a", "**/*.txt", "*[ab].bin"}) {
    const std::string stars = "must stand in quotes, as \"*.txt\"";
    for (const List& found : {errors_set(std::string("data.files=[") + pattern + "]"),
                              errors_with(std::string("eval: {batches: ") + pattern + "}")}) {
      ASSERT_EQ(found.size(), 1u);
      EXPECT_NE(found[0].find(stars), std::string::npos) << found[0];
    }
  }
  for (const char* text : {"eval:\n\tbatches: 3", "run: {}\nsample:\n  prompt: a: b", "sample: {prompt: @a}",
                           "sample: {prompt: `a`}"}) {
    const List found = errors(std::string("schema_version: 1\n") + text);
    ASSERT_GE(found.size(), 1u);
    EXPECT_NE(found[0].find("indent by spaces"), std::string::npos) << found[0];
  }
}

TEST(BadDeck, AnchorsAliasesTags) {
  EXPECT_EQ(errors_with("eval: {batches: &a 3}\nsample: {tokens: *a}"),
            (List{"d.yaml:6:17: anchors are not allowed: write the value out where it is needed",
                  "d.yaml:7:18: aliases are not allowed: write the value out"}));
  EXPECT_EQ(errors_with("eval: {batches: !!int 3}"),
            List{"d.yaml:6:17: tags are not allowed: the key says what type its value has"});
}

TEST(BadDeck, AliasBombIsNotUnfolded) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1), name = "a" + std::to_string(i);
    bomb += name + ": &" + name + " [" + before;
    for (int k = 0; k < 8; ++k) bomb += ", " + before;
    bomb += "]\n";
  }
  const List found = errors(small + bomb);
  EXPECT_EQ(found.size(), 12u + 12u + 11u * 9u);  // unknown keys, anchors, aliases
}

TEST(BadDeck, DeepNesting) {
  EXPECT_EQ(errors("a: " + std::string(200, '[') + std::string(200, ']')),
            List{"d.yaml:1:19: nested more than 16 deep"});
  const List open = errors("a: " + std::string(100000, '['));
  ASSERT_EQ(open.size(), 1u);
  EXPECT_NE(open[0].find("nested more than 16 deep"), std::string::npos) << open[0];
  std::string block;
  for (int i = 0; i < 500; ++i) block += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_EQ(errors(block), List{"d.yaml:17:17: nested more than 16 deep"});
}

TEST(BadDeck, NotADeck) {
  EXPECT_EQ(errors(""), List{"d.yaml:1:1: is empty"});
  EXPECT_EQ(errors("# nothing\n\n"), List{"d.yaml:1:1: is empty"});
  EXPECT_EQ(errors("---\n"), List{"d.yaml:2:1: is empty"});
  EXPECT_EQ(errors("hello"), List{"d.yaml:1:1: hello is not a deck: sections of keys and values are needed"});
  EXPECT_EQ(errors("[1, 2]"), List{"d.yaml:1:1: a list is not a deck: sections of keys and values are needed"});
  EXPECT_EQ(errors(small + "---\nrun: {}\n"), List{"d.yaml:7:1: a second document: a deck is one"});
  EXPECT_EQ(errors_with("? [a]\n: 3"), List{"d.yaml:6:3: a key must be a word"});
}

TEST(BadDeck, Binary) {
  EXPECT_EQ(errors(std::string("run:\n  \0x", 9)), List{"d.yaml:2:3: not text: byte 0x00 is no UTF-8 here"});
  EXPECT_EQ(errors("\x7f" "ELF"), List{"d.yaml:1:1: not text: byte 0x7f is no UTF-8 here"});
  EXPECT_EQ(errors("a: \xc3("), List{"d.yaml:1:4: not text: byte 0xc3 is no UTF-8 here"});
  EXPECT_EQ(errors("a: \xed\xa0\x80"), List{"d.yaml:1:4: not text: byte 0xed is no UTF-8 here"});  // a surrogate
}

TEST(BadDeck, SyntaxErrorsHaveAPlace) {
  const List found = errors("schema_version: 1\nrun: {steps: 3\nmodel: 3\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rfind("d.yaml:3:", 0), 0u) << found[0];
  EXPECT_NE(found[0].find(": not YAML: "), std::string::npos) << found[0];
  EXPECT_EQ(errors("run:\n\tsteps: 3\n").front().rfind("d.yaml:2:", 0), 0u);
}

class DeckFile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  }
  static List errors_of(const std::string& path) {
    Problems problems;
    read_deck(path, {}, problems);
    return texts(problems);
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("tessera-deck-" + std::to_string(::getpid()) + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(DeckFile, RootIsTheDecksFolder) {
  Problems problems;
  const std::string path = write("small.yaml", small);
  const std::filesystem::path real = std::filesystem::canonical(folder);
  EXPECT_EQ(read_deck(path, {}, problems).config.data.root.get(), real.string());
  EXPECT_EQ(read_deck(path, {{"data.root", "../x"}}, problems).config.data.root.get(),
            (real.parent_path() / "x").string());
  EXPECT_EQ(read_deck(path, {{"data.root", "/y/"}}, problems).config.data.root.get(), "/y");
  EXPECT_TRUE(problems.empty());
}

TEST_F(DeckFile, Unreadable) {
  const std::string gone = (folder / "gone.yaml").string();
  EXPECT_EQ(errors_of(gone), List{gone + ": cannot be read: No such file or directory"});
  EXPECT_EQ(errors_of(folder.string()), List{folder.string() + ": is a folder, not a deck"});
  const std::string huge = write("huge.yaml", std::string((1 << 20) + 1, '#'));
  EXPECT_EQ(errors_of(huge), List{huge + ": is larger than 1 MiB, no deck"});
  EXPECT_EQ(errors_of("/dev/zero"), List{"/dev/zero: is a pipe or device, not a deck: write it to a file"});
  const std::string pipe = (folder / "pipe.yaml").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(errors_of(pipe), List{pipe + ": is a pipe or device, not a deck: write it to a file"});
}

/// Decks in a folder, by name.
class Bases : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) { return folder_.write(name, text).string(); }
  Deck read(const std::string& path, const std::vector<Override>& overrides = {}) {
    Problems problems;
    Deck deck = read_deck(path, overrides, problems);
    EXPECT_EQ(texts(problems), List{});
    return deck;
  }
  List errors_of(const std::string& path) {
    Problems problems;
    read_deck(path, {}, problems);
    List list = texts(problems);
    for (std::string& text : list)
      for (std::size_t at; (at = text.find(folder_.path().string() + "/")) != std::string::npos;)
        text.erase(at, folder_.path().string().size() + 1);
    return list;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Bases, GiveWhatADeckLeavesOut) {
  write("common/all.yaml", small + "optimizer: {lr: 1.0e-2, clip: 2}\nsample: {tokens: 3, prompt: a}\n");
  write("common/text.yaml", "base: all.yaml\nrun: {seed: 7}\ndata: {root: corpus}\noptimizer: {clip: 3}\n");
  const std::string path =
      write("runs/mine.yaml", "base: ../common/text.yaml\nrun: {name: mine}\ndata: {files: [a.txt]}\n");
  const Deck deck = read(path, {{"optimizer.min_lr", "1e-4"}});
  const RunConfig& config = deck.config;
  EXPECT_EQ(config.run.name, "mine");
  EXPECT_EQ(config.run.seed, 7u);
  EXPECT_EQ(config.run.steps, 10);
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.optimizer.clip, 3);
  EXPECT_EQ(config.data.files, List{"a.txt"});
  EXPECT_EQ(config.data.root.get(), (folder_.path() / "common/corpus").string());
  const std::string common = (folder_.path() / "common").string();
  EXPECT_EQ(deck.provenance.bases, (List{common + "/text.yaml", common + "/all.yaml"}));
  const std::string text = resolved_text(deck);
  for (const std::string& line :
       {std::string("  name: \"mine\"  # deck\n"), "  seed: 7  # base " + common + "/text.yaml:2:13\n",
        "  lr: 0.01  # base " + common + "/all.yaml:6:17\n", std::string("  min_lr: 1e-04  # override\n")})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(sound(text).config, config) << "a resolved deck needs no base";
  EXPECT_EQ(deck.provenance.located({{"optimizer.lr"}, "wrong"}), common + "/all.yaml:6:17: optimizer.lr: wrong");
  EXPECT_NE(deck.text_hash, read(write("runs/other.yaml", "base: ../common/all.yaml\nrun: {name: mine}\n")).text_hash);
}

TEST_F(Bases, SayInWhichFileAnErrorIs) {
  write("base.yaml", small + "optimizer: {lr: high, clp: 1}\n");
  EXPECT_EQ(errors_of(write("deck.yaml", "base: base.yaml\nrun: {stps: 4}\n")),
            (List{"deck.yaml:2:7: run.stps: unknown key, did you mean run.steps?",
                  "base.yaml:6:17: optimizer.lr: high is not a number, allowed 0 to 1000",
                  "base.yaml:6:23: optimizer.clp: unknown key, did you mean optimizer.clip?"}));
  EXPECT_EQ(errors_of(write("deck.yaml", "base: nothing.yaml\n" + small)),
            List{"deck.yaml:1:7: base: nothing.yaml: cannot be read: No such file or directory"});
  EXPECT_EQ(errors_of(write("deck.yaml", "base: nothing.yaml\nrun: {stps: 4}\n")),
            (List{"deck.yaml:1:7: base: nothing.yaml: cannot be read: No such file or directory",
                  "deck.yaml:2:7: run.stps: unknown key, did you mean run.steps?"}))
      << "no word of keys that the base may give";
  EXPECT_EQ(errors_of(write("deck.yaml", "base: [base.yaml]\n" + small)),
            List{"deck.yaml:1:7: base: a list is not the path of a deck"});
  write("base.yaml", "run: {seed: 5}\n");
  EXPECT_EQ(errors_of(write("deck.yaml", "base: base.yaml\nbase: base.yaml\n" + small)),
            List{"deck.yaml:2:1: base: given twice: keep one"});
  write("base.yaml", "just words\n");
  EXPECT_EQ(errors_of(write("deck.yaml", "base: base.yaml\n" + small)),
            List{"deck.yaml:1:7: base: base.yaml is no deck: sections of keys and values are needed"});
  write("base.yaml", "run: [1\n");
  EXPECT_EQ(errors_of(write("deck.yaml", "base: base.yaml\n" + small)).front().substr(0, 10), "base.yaml:");
}

TEST_F(Bases, MayNotIncludeThemselves) {
  EXPECT_EQ(errors_of(write("a.yaml", "base: ./a.yaml\n" + small)),
            List{"a.yaml:1:7: base: ./a.yaml includes itself: a.yaml -> a.yaml"});
  write("b.yaml", "base: c.yaml\n");
  write("c.yaml", "base: ../" + folder_.path().filename().string() + "/a.yaml\n");
  const List errors = errors_of(write("a.yaml", "base: b.yaml\n" + small));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors.front().find("includes itself: a.yaml -> b.yaml -> c.yaml -> a.yaml"), std::string::npos)
      << errors.front();
}

TEST(Deck, WhatACheckpointHoldsBuildsOnNoOther) {
  EXPECT_THROW(parse_saved_deck("base: other.yaml\n" + small, "saved.yaml"), Error);
}

}  // namespace
}  // namespace tessera
