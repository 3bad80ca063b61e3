#include "core/config/sections/checkpoint.hpp"

#include <algorithm>
#include <filesystem>

#include "core/config/config.hpp"
#include "core/config/treatments.hpp"

namespace tessera {
namespace {

bool begins_with_weights(const RunConfig& c) { return !c.checkpoint.init_from.empty(); }
bool saves_on_the_way(const RunConfig& c) {
  return c.checkpoint.every_steps > 0 || (c.checkpoint.keep_best && evaluates_on_the_way(c));
}

constexpr const char* while_saving =
    "with checkpoint.every_steps above 0, or keep_best: else the last step and early ends alone are saved";

}  // namespace

void CheckpointConfig::derive(const RunConfig& config) {
  dir.fill("runs/" + config.run.name);
  io.fill(async ? CheckpointIo::direct : CheckpointIo::mpio);
}

void CheckpointConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  const std::filesystem::path name = config.run.name;
  const bool leaves = std::ranges::any_of(name, [](const auto& part) { return part == ".."; });
  if (leaves && dir.get() == "runs/" + config.run.name)
    found.push_back({{"run.name"}, "holds .., and the run directory runs/<run.name> would lie elsewhere: leave it out, "
                                   "or set checkpoint.dir"});
  if (quantized && config.sharding == Sharding::full)
    found.push_back({{"checkpoint.quantized", "sharding"},
                     "is true, and with sharding full no rank holds whole weights: leave it out and run `tessera "
                     "quantize` on the step, or use sharding optimizer"});
  if (quantized && coded_weights(config).empty())
    found.push_back({{"checkpoint.quantized", "precision.recipe"}, no_codes_text(config, "quantized")});
  if (async && io == CheckpointIo::mpio)
    found.push_back({{"checkpoint.io", "checkpoint.async"},
                     "is mpio, and no thread beside training may use MPI: use io direct, or leave io or async out"});
  if (async && quantized)
    found.push_back({{"checkpoint.quantized", "checkpoint.async"},
                     "is made by the ranks together while training waits: leave quantized or async out"});
}

std::span<const Effect> CheckpointConfig::effects() {
  static constexpr Effect rows[] = {
      {"checkpoint.keep_last", "checkpoint.every_steps", while_saving, saves_on_the_way},
      {"checkpoint.keep_every", "checkpoint.every_steps", while_saving, saves_on_the_way},
      {"checkpoint.async", "checkpoint.every_steps", while_saving, saves_on_the_way},
      {"checkpoint.keep_best", "eval.every_steps", while_evaluating, evaluates_on_the_way},
      {"checkpoint.expert_layout", "model.moe", "on models with model.moe",
       [](const RunConfig& c) { return c.model.moe.has_value(); }},
      {"checkpoint.mpio_hints", "checkpoint.io", "with io mpio",
       [](const RunConfig& c) { return c.checkpoint.io == CheckpointIo::mpio; }},
      {"checkpoint.init_missing", "checkpoint.init_from", "with init_from", begins_with_weights},
      {"checkpoint.init_rows", "checkpoint.init_from", "with init_from", begins_with_weights},
      {"checkpoint.init_ignore_extra", "checkpoint.init_from", "with init_from", begins_with_weights},
      {"checkpoint.init_other_tokenizer", "checkpoint.init_from", "with init_from", begins_with_weights},
  };
  return rows;
}

std::span<const OtherName> CheckpointConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"save_every save_steps save_interval save_every_steps save_freq checkpoint_every checkpoint_interval "
       "ckpt_interval ckpt_every checkpoint_steps checkpoint.interval checkpoint.every save_every_n_steps",
       "checkpoint.every_steps", ""},
      {"output_dir out_dir save_dir checkpoint_dir ckpt_dir dump_folder checkpoint.folder checkpoint.path",
       "checkpoint.dir", ""},
      {"save_total_limit keep_latest_k max_checkpoints keep_latest", "checkpoint.keep_last", ""},
      {"async_mode async_save async_checkpoint", "checkpoint.async", ""},
      {"resume resume_from resume_from_checkpoint load load_checkpoint", "",
       "the same command goes on from the newest step; `train --resume STEP` names another"},
      {"model_name_or_path pretrained pretrained_model initial_load_path finetune load_weights",
       "checkpoint.init_from", ""},
      {"save_best save_best_only save_top_k load_best_model_at_end", "checkpoint.keep_best", ""},
  };
  return rows;
}

}  // namespace tessera
