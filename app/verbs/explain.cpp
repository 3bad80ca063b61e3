#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "app/training/tell/summary.hpp"
#include "app/verbs/verbs.hpp"
#include "core/config/effects.hpp"
#include "core/config/keys.hpp"
#include "core/config/other_names.hpp"
#include "core/config/value.hpp"
#include "core/config/visitor.hpp"
#include "core/params/planes.hpp"
#include "core/recipe/recipe.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

const char* restart_text(Restart restart) {
  switch (restart) {
    case Restart::fixed: return "fixed: a resumed run must keep it";
    case Restart::on_request: return "fixed, unless `train --allow-change` names it";
    case Restart::contents:
      return "may change in a resumed run; the contents behind it only if `train --allow-change` names it";
    case Restart::told:
    case Restart::told_of_sums:
    case Restart::may_change: return "may change in a resumed run";
  }
  return "";
}

const char* short_text(Restart restart) {
  switch (restart) {
    case Restart::fixed: return "fixed";
    case Restart::on_request: return "--allow-change";
    case Restart::contents: return "may change, its contents: --allow-change";
    case Restart::told:
    case Restart::told_of_sums:
    case Restart::may_change: return "may change";
  }
  return "";
}

/// The values of a deck with their origins; none without a deck.
class ValueOfKey : public ConfigVisitor<ValueOfKey> {
 public:
  explicit ValueOfKey(const ExplainOptions& options) {
    if (options.deck.empty()) return;
    Problems problems;
    deck_ = read_deck(options.deck, options.overrides, problems);
    problems.raise();
    RunConfig::visit(deck_.config, *this);
  }

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    const auto origin = deck_.provenance.origins.find(key.path);
    if (origin == deck_.provenance.origins.end()) return;
    const auto& [source, where, base] = origin->second;
    const bool given = source != Source::standard && source != Source::derived;
    texts_[key.path] = fmt::format("{}, {}{}", filled(member) ? deck_text(member) : "open until a run begins",
                                   name_of(source), given ? ": " + where : "");
  }

  /// In which formats the deck's matrices are multiplied, a line for those that are alike; empty without a deck.
  std::string formats() const { return texts_.empty() ? "" : formats_text(deck_.config); }

  /// Text of a key's value and origin; empty if the deck does not have its section.
  std::string of(const std::string& key) const {
    const auto found = texts_.find(key);
    return found == texts_.end() ? "" : found->second;
  }

 private:
  Deck deck_;
  std::map<std::string, std::string> texts_;
};

/// Documentation of `base`, a key of decks that RunConfig does not have: reading a deck resolves it.
const KeyDoc base_doc = {KeyDoc::Kind::key, "base", "a text", "none", "the path of a deck", Restart::may_change,
                         "Another deck, as base: other.yaml, that gives what this one leaves out, key by key; lists "
                         "are taken whole. Its path counts from this deck's folder; it may have a base of its own",
                         {}};

void print_key(const KeyDoc& doc, const ValueOfKey& values) {
  fmt::print("{}\n  {}\n", doc.path, doc.help);
  if (const std::string value = values.of(doc.path); !value.empty()) fmt::print("  value    {}\n", value);
  fmt::print("  type     {}\n  default  {}\n  allowed  {}\n  restart  {}\n", doc.type, doc.standard, doc.allowed,
             restart_text(doc.restart));
  if (const std::string when = when_it_matters(doc.path); !when.empty()) fmt::print("  effect   {}\n", when);
}

/// Whether a key's value has keys itself, which documentation lists behind it.
bool has_keys(const KeyDoc& doc) {
  const KeyDoc* const next = &doc + 1;
  return next != key_docs().data() + key_docs().size() && next->path.starts_with(doc.path + ".");
}

/// Prints the keys of a section ("" for the deck itself), one a line, then the sections in it.
void print_section(const std::string& path, const std::string& help, const ValueOfKey& values) {
  const std::string prefix = path.empty() ? "" : path + ".";
  std::vector<const KeyDoc*> keys, sections;
  std::size_t width = 0;
  for (const KeyDoc& doc : key_docs()) {
    if (doc.path.rfind(prefix, 0) != 0 || doc.path.find('.', prefix.size()) != std::string::npos) continue;
    if (doc.kind == KeyDoc::Kind::key) keys.push_back(&doc);
    if (doc.kind == KeyDoc::Kind::section || has_keys(doc)) sections.push_back(&doc);
    if (doc.kind == KeyDoc::Kind::key) width = std::max(width, doc.path.size() - prefix.size());
  }
  if (!path.empty()) fmt::print("{}: {}\n", path, help);
  for (const KeyDoc* doc : keys) {
    const std::string when = when_it_matters(doc->path);
    fmt::print("  {:<{}}  {}{}{}\n", doc->path.substr(prefix.size()), width, doc->help,
               when.empty() ? "" : "; has an effect ", when);
    fmt::print("  {:<{}}  default {}; allowed {}; {}\n", "", width, doc->standard, doc->allowed,
               short_text(doc->restart));
    if (const std::string value = values.of(doc->path); !value.empty())
      fmt::print("  {:<{}}  value {}\n", "", width, value);
  }
  for (const KeyDoc* doc : sections) {
    fmt::print("\n");
    print_section(doc->path, doc->help, values);
  }
}

/// Prints the table recipe x held and travels as x pass x recomputation -> bytes of a weight's element in a step, and
/// why.
void print_gathers() {
  constexpr const char* row = "  {:<13} {:<9} {:<9} {:<9} {:<24} {:<8} {}\n";
  fmt::print("What is gathered, for each weight and step\n");
  fmt::print(fmt::runtime(row), "recipe", "held", "wire", "pass", "recompute", "bytes", "why");
  const auto print = [&](const Recipe& recipe, Travel travel) {
    const WeightFormat weight = recipe.treatment.held();
    const std::string held = travel == Travel::plain ? "bf16" : "quantized", wire = travels_as(weight, travel);
    const bool plain = weight.plain == DType::f32;
    fmt::print(fmt::runtime(row), recipe.name, plain ? "fp32" : held, wire, "forward", "none, selective, full",
               wire_bytes(weight, travel),
               "once, before its first use: " + reason_of(weight, travel));
    fmt::print(fmt::runtime(row), recipe.name, plain ? "fp32" : held, wire, "backward", "none, selective, full", 0,
               "what forward gathered serves both directions, and what is computed again");
  };
  for (const Recipe& recipe : recipes()) {
    print(recipe, Travel::plain);
    if (!recipe.treatment.held().codes) continue;
    print(recipe, Travel::bf16);
    print(recipe, Travel::codes);
  }
  fmt::print("  wire auto takes the fewer bytes. Cuts tile add one scale a block, where none is counted above.\n");
}

/// Prints the table recipe x held as x pass x recomputation -> what full sharding gathers for each micro-batch.
void print_visits() {
  constexpr const char* row = "  {:<13} {:<9} {:<18} {:<16} {:<21} {:<9} {}\n";
  fmt::print("What `sharding: full` gathers, for each weight and micro-batch\n");
  fmt::print(fmt::runtime(row), "recipe", "held", "recompute", "forward", "backward", "bytes", "why");
  const auto print = [&](const Recipe& recipe, Travel travel) {
    const WeightFormat weight = recipe.treatment.held();
    const std::string plain = weight.plain == DType::f32 ? "fp32" : "bf16";
    const std::string held = travel == Travel::plain ? plain : "quantized";
    const auto in_all = [&](int times) { return fmt::format("{:.6g}", times * kept_bytes(weight, travel)); };
    if (payload_of(weight, travel, Side::columnwise) != Sides::columnwise) {
      fmt::print(fmt::runtime(row), recipe.name, held, "any", "the one payload", "the same", in_all(2),
                 reason_of(weight, travel));
      return;
    }
    fmt::print(fmt::runtime(row), recipe.name, held, "none", "rowwise", "columnwise", in_all(2),
               "each pass reads one copy");
    fmt::print(fmt::runtime(row), recipe.name, held, "full", "rowwise", "rowwise, columnwise", in_all(3),
               "the block is computed again");
    fmt::print(fmt::runtime(row), recipe.name, held, "selective, block", "rowwise", "rowwise, columnwise", in_all(3),
               "a block travels whole, whatever of it is computed again");
    fmt::print(fmt::runtime(row), recipe.name, held, "selective, module", "rowwise", "rowwise*, columnwise", in_all(3),
               "*of modules that are computed again; 2/3 of the bytes for the others");
  };
  for (const Recipe& recipe : recipes()) {
    print(recipe, Travel::plain);
    if (recipe.treatment.held().codes) print(recipe, Travel::codes);
  }
}

/// Prints the table recipe -> formats of the factors of products.
void print_formats() {
  constexpr const char* row = "  {:<13} {:<13} {:<13} {:<15} {:<16} {}\n";
  const auto format = [](const std::optional<FormatId>& id) { return id ? traits_of(*id).name : "as it is"; };
  fmt::print("What products of linear and expert layers take, of matrices that the recipe quantizes\n");
  fmt::print(fmt::runtime(row), "recipe", "weight", "activation", "gradient", "sides and rows", "experts' rows begin");
  for (const Recipe& recipe : recipes()) {
    const Treatment& t = recipe.treatment;
    const Multiples of = multiples_of(t);
    fmt::print(fmt::runtime(row), recipe.name, name_of(t.held()), format(t.activation.forward),
               format(t.gradient.dgrad), fmt::format("of {} and {}", of.out, of.rows),
               fmt::format("at multiples of {}", of.expert_rows));
  }
}

}  // namespace

int run_explain(const ExplainOptions& options) {
  const ValueOfKey values(options);
  if (options.key.empty()) {
    fmt::print("  {:<14}  {}\n", base_doc.path, base_doc.help);
    fmt::print("  {:<14}  default {}; allowed {}; {}\n", "", base_doc.standard, base_doc.allowed,
               short_text(base_doc.restart));
    print_section("", "", values);
    fmt::print("\n");
    print_formats();
    fmt::print("\n");
    print_gathers();
    fmt::print("\n");
    print_visits();
    return 0;
  }
  if (options.key == "base") {
    print_key(base_doc, values);
    return 0;
  }
  const KeyDoc* const doc = find_key(options.key);
  if (!doc) {
    const std::string meant = meant_by(options.key);
    throw Error(Exit::usage, fmt::format("{}: unknown key{}", options.key,
                                         meant.empty() ? ", `tessera explain` lists all" : meant));
  }
  if (doc->kind == KeyDoc::Kind::section)
    print_section(doc->path, doc->help, values);
  else
    print_key(*doc, values);
  if (doc->path.starts_with("precision")) fmt::print("{}", values.formats());
  return 0;
}

}  // namespace tessera
