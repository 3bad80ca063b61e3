#include "core/config/effects.hpp"

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/config/keys.hpp"
#include "core/config/values.hpp"

namespace tessera {
namespace {

/// When a key matters.
struct Effect {
  const char* key;      ///< a key, or a section for all of its keys
  const char* decides;  ///< the key that decides
  const char* only;     ///< the end of "has an effect only ..."
  bool (*matters)(const RunConfig&);
};

bool rotary(const RunConfig& c) { return c.model.position == Position::rotary; }
bool quantizes(const RunConfig& c) { return c.precision.recipe != RecipeName::bf16; }
bool begins_with_weights(const RunConfig& c) { return !c.checkpoint.init_from.empty(); }
bool evaluates(const RunConfig& c) { return c.data.eval_fraction > 0.0 || !c.data.eval_files.empty(); }
bool saves_on_the_way(const RunConfig& c) { return c.checkpoint.every_steps > 0; }
bool leaves_root_out(const std::vector<std::string>& patterns) {
  return std::ranges::all_of(patterns, [](const std::string& p) { return std::filesystem::path(p).is_absolute(); });
}

constexpr const char* while_saving =
    "with checkpoint.every_steps above 0: without it the last step and early ends alone are saved";

/// Every key that others can leave without effect. What no run could mean is refused, by check().
constexpr Effect effects[] = {
    {"model.rope_base", "model.position", "with position rotary", rotary},
    {"model.rope_scaling", "model.position", "with position rotary", rotary},
    {"model.rope_scaling", "model.rope_scaling.factor", "with a factor above 1",
     [](const RunConfig& c) { return !rotary(c) || !c.model.rope_scaling || c.model.rope_scaling->factor > 1; }},
    {"model.ffn", "model.moe.ffn", "on dense layers, of which moe.first_dense and moe.every leave none",
     [](const RunConfig& c) {
       return !c.model.moe || c.model.moe->ffn.get() == c.model.ffn.get() ||
              c.model.moe->blocks().among(c.model.layers) < c.model.layers;
     }},
    {"model.moe.groups", "model.moe.top_groups", "with top_groups below groups",
     [](const RunConfig& c) {
       const auto& moe = c.model.moe;
       return !moe || moe->groups == 1 || moe->top_groups < moe->groups;
     }},
    {"model.moe.balance_over", "model.moe.balance_coef", "with balance_coef above 0",
     [](const RunConfig& c) { return !c.model.moe || c.model.moe->balance_coef > 0; }},
    {"model.moe.bias_rate", "model.moe.bias", "with bias true",
     [](const RunConfig& c) { return !c.model.moe || c.model.moe->bias; }},
    {"recompute.modules", "recompute.mode", "with mode selective",
     [](const RunConfig& c) { return c.recompute.mode == RecomputeMode::selective; }},
    {"data.root", "data.files", "on patterns that are no absolute paths",
     [](const RunConfig& c) { return !leaves_root_out(c.data.files) || !leaves_root_out(c.data.eval_files); }},
    {"data.eval_windows", "data.eval_fraction", "with eval_fraction above 0, or eval_files", evaluates},
    {"data.eval_seed", "data.eval_fraction", "with eval_fraction above 0, or eval_files", evaluates},
    {"data.eval_seed", "data.eval_windows", "with eval_windows drawn",
     [](const RunConfig& c) { return !evaluates(c) || c.data.eval_windows == EvalWindows::drawn; }},
    {"precision.quantize_head", "precision.recipe", "with a recipe other than bf16", quantizes},
    {"precision.bf16_first", "precision.recipe", "with a recipe other than bf16", quantizes},
    {"precision.bf16_last", "precision.recipe", "with a recipe other than bf16", quantizes},
    {"precision.statistics_every", "precision.recipe", "with a recipe other than bf16", quantizes},
    {"precision.seed", "precision.recipe", "with a recipe that rounds stochastically: nvfp4",
     [](const RunConfig& c) { return c.precision.recipe == RecipeName::nvfp4; }},
    {"data.seed", "data.shuffle", "with shuffle true", [](const RunConfig& c) { return c.data.shuffle; }},
    {"precision.recipe", "precision.bf16_first", "on blocks that bf16_first and bf16_last leave to it",
     [](const RunConfig& c) {
       return !quantizes(c) || c.precision.quantize_head ||
              c.precision.bf16_first + c.precision.bf16_last < c.model.layers;
     }},
    {"proof.cuts", "precision.recipe", "on weights that the recipe quantizes", quantizes},
    {"reduce.bucket_mib", "sharding", "with sharding: optimizer: under full sharding gradients travel module by module",
     [](const RunConfig& c) { return c.sharding == Sharding::optimizer; }},
    {"optimizer.muon", "optimizer.matrices", "with matrices: muon",
     [](const RunConfig& c) { return c.optimizer.matrices == MatrixRule::muon; }},
    {"optimizer.decay_steps", "optimizer.schedule", "with schedule wsd",
     [](const RunConfig& c) { return c.optimizer.schedule == RateSchedule::wsd; }},
    {"optimizer.min_lr", "optimizer.schedule", "with a schedule other than constant",
     [](const RunConfig& c) { return c.optimizer.schedule != RateSchedule::constant; }},
    {"optimizer.skip_spikes", "run.steps", "from step 130 on",
     [](const RunConfig& c) { return c.run.steps >= 130; }},
    {"parallel.expert_room", "parallel.expert", "with parallel.expert above 1",
     [](const RunConfig& c) { return c.parallel.expert > 1; }},
    {"checkpoint.keep_last", "checkpoint.every_steps", while_saving, saves_on_the_way},
    {"checkpoint.keep_every", "checkpoint.every_steps", while_saving, saves_on_the_way},
    {"checkpoint.async", "checkpoint.every_steps", while_saving, saves_on_the_way},
    {"checkpoint.expert_layout", "model.moe", "on models with model.moe",
     [](const RunConfig& c) { return c.model.moe.has_value(); }},
    {"checkpoint.mpio_hints", "checkpoint.io", "with io mpio",
     [](const RunConfig& c) { return c.checkpoint.io == CheckpointIo::mpio; }},
    {"checkpoint.init_missing", "checkpoint.init_from", "with init_from", begins_with_weights},
    {"checkpoint.init_rows", "checkpoint.init_from", "with init_from", begins_with_weights},
    {"checkpoint.init_ignore_extra", "checkpoint.init_from", "with init_from", begins_with_weights},
    {"checkpoint.init_other_tokenizer", "checkpoint.init_from", "with init_from", begins_with_weights},
    {"debug.profile", "run.steps", "in runs of at least one step", [](const RunConfig& c) { return c.run.steps > 0; }},
};

/// Whether a value asks for nothing.
bool is_off(const std::string& value) {
  return value == "false" || value == "0" || value == "\"\"" || value == "[]" || value == "{}" || value == "auto";
}

bool covers(const std::string& key, const std::string& path) {
  return path == key || path.starts_with(key + ".");
}

}  // namespace

std::string when_it_matters(const std::string& key) {
  std::string when;
  for (const Effect& effect : effects) {
    if (!covers(effect.key, key) || effect.decides == key) continue;
    const bool named = std::string_view(effect.only).find(effect.decides) != std::string_view::npos;
    when += (when.empty() ? "only " : ", and ") + std::string(effect.only);
    if (!named) when += " (" + std::string(effect.decides) + ")";
  }
  return when;
}

std::vector<Finding> without_effect(const RunConfig& config, const std::set<std::string>& given) {
  const std::map<std::string, std::string> values = values_of(config);
  const bool resolved = std::ranges::all_of(values, [&](const auto& value) { return given.contains(value.first); });
  const auto says_something = [&](const KeyDoc& doc) {
    const bool derived = doc.standard.starts_with("derived");
    const std::string& value = values.at(doc.path);
    if (resolved) return !derived && value != doc.standard;
    return !is_off(value) || !(derived || value == doc.standard);
  };
  std::vector<Finding> found;
  for (const Effect& effect : effects) {
    if (effect.matters(config)) continue;
    for (const KeyDoc& doc : key_docs())
      if (doc.kind == KeyDoc::Kind::key && covers(effect.key, doc.path) && given.contains(doc.path) &&
          values.contains(doc.path) && doc.path != effect.decides && says_something(doc))
        found.push_back({{doc.path, effect.decides}, std::string("has an effect only ") + effect.only});
  }
  return found;
}

}  // namespace tessera
