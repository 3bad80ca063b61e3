#include "core/config/sections/run.hpp"

#include "core/config/config.hpp"

namespace tessera {

std::span<const Effect> RunSection::effects() {
  static constexpr Effect rows[] = {
      {"run.stop_after", "eval.every_steps", while_evaluating, evaluates_on_the_way},
      {"run.hook_timeout_s", "run.on_save", "with on_save or on_end",
       [](const RunConfig& c) { return !c.run.on_save.empty() || !c.run.on_end.empty(); }},
  };
  return rows;
}

std::span<const OtherName> RunSection::other_names() {
  constexpr const char* by_steps = "a run has a number of steps: `tessera validate` says how many epochs they are";
  constexpr const char* logging =
      "every step is written to metrics.jsonl and to TensorBoard's files in the run directory; nothing is sent "
      "anywhere";
  constexpr const char* hardware = "the program is built for CPUs or for GPUs: there is no key for it";
  static constexpr OtherName rows[] = {
      {"max_steps train_iters max_iters num_iterations num_steps training_steps total_steps train_steps", "run.steps",
       ""},
      {"epochs num_epochs num_train_epochs max_epochs n_epochs train_epochs", "run.steps", by_steps},
      {"random_seed rng_seed", "run.seed", ""},
      {"run_name experiment_name exp_name job_name wandb_run_name", "run.name", ""},
      {"deterministic deterministic_mode full_determinism use_deterministic_algorithms", "",
       "every run repeats: there is no key for it"},
      {"num_threads omp_num_threads", "run.threads", ""},
      {"training trainer train", "run", "see also batch, optimizer and data"},
      {"compile torch_compile", "", "nothing is compiled at run time"},
      {"device device_type accelerator", "", hardware},
      {"wandb use_wandb wandb_log wandb_project report_to tensorboard tensorboard_dir enable_tensorboard "
       "logging metrics", "", logging},
      {"early_stopping early_stop patience early_stopping_patience", "run.stop_after", "evaluations without gain"},
      {"on_checkpoint save_hook post_save_hook", "run.on_save", ""},
      {"on_train_end end_hook on_finish alert_command", "run.on_end", ""},
      {"log_interval logging_steps log_freq", "run.log_every", ""},
  };
  return rows;
}

}  // namespace tessera
