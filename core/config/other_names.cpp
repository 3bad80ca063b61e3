#include "core/config/other_names.hpp"

#include <cctype>
#include <map>
#include <sstream>

#include "core/config/keys.hpp"

namespace tessera {
namespace {

constexpr const char* no_parallelism =
    "ranks share the data and, by parallel.expert, the experts: sharding full keeps a part of the weights on each";
constexpr const char* accumulation =
    "a step accumulates batch.global / (ranks * batch.micro) micro-batches: choose batch.global and batch.micro";
constexpr const char* by_steps = "a run has a number of steps: `tessera validate` says how many epochs they are";
constexpr const char* logging =
    "every step is written to metrics.jsonl and to TensorBoard's files in the run directory; nothing is sent anywhere";
constexpr const char* hardware = "the program is built for CPUs or for GPUs: there is no key for it";

constexpr OtherName table[] = {
    // the run
    {"max_steps train_iters max_iters num_iterations num_steps training_steps total_steps train_steps", "run.steps",
     ""},
    {"epochs num_epochs num_train_epochs max_epochs n_epochs train_epochs", "run.steps", by_steps},
    {"random_seed data_seed rng_seed", "run.seed", ""},
    {"run_name experiment_name exp_name job_name wandb_run_name", "run.name", ""},
    {"deterministic deterministic_mode full_determinism use_deterministic_algorithms", "",
     "every run repeats: there is no key for it"},
    {"cuda_graph enable_cuda_graph use_cuda_graph", "proof.graph", ""},
    {"num_threads omp_num_threads", "run.threads", ""},
    {"training trainer train", "run", "see also batch, optimizer and data"},
    {"compile torch_compile", "", "nothing is compiled at run time"},
    {"device device_type accelerator", "", hardware},
    // the model
    {"n_layer n_layers num_layers num_hidden_layers depth", "model.layers", ""},
    {"n_embd d_model dim hidden_size n_embed embed_dim channels", "model.hidden", ""},
    {"n_head n_heads num_heads num_attention_heads", "model.heads", ""},
    {"n_kv_heads num_kv_heads num_key_value_heads num_query_groups n_head_kv", "model.kv_heads", ""},
    {"kv_channels", "model.head_dim", ""},
    {"intermediate_size ffn_hidden_size ffn_dim d_ff n_inner hidden_dim",
     "model.ffn", ""},
    {"block_size seq_length sequence_length max_seq_len max_seq_length max_position_embeddings context_length "
     "n_positions n_ctx max_sequence_length", "model.seq_len", ""},
    {"vocab_size padded_vocab_size make_vocab_size_divisible_by", "model.vocab", ""},
    {"rope_theta rotary_base rope_freq_base", "model.rope_base", ""},
    {"rotary_dim rotary_ndims rope_head_dim", "model.rope_dim", ""},
    {"partial_rotary_factor rotary_pct rotary_percent", "model.rope_dim",
     "rope_dim is that share of head_dim, as a number of elements"},
    {"position_embedding_type pos_emb", "model.position", ""},
    {"rms_norm_eps layer_norm_eps layer_norm_epsilon", "model.norm_eps", ""},
    {"normalization norm_type", "model.norm", ""},
    {"hidden_act activation_function act_fn", "model.activation", ""},
    {"tie_word_embeddings tie_embeddings weight_tying enable_weight_tying share_embeddings_and_output_weights",
     "model.tied_head", ""},
    {"untie_embeddings_and_output_weights", "model.tied_head", "tied_head is its opposite"},
    {"use_bias add_bias_linear disable_bias_linear mlp_bias", "model.bias", ""},
    {"attention_bias add_qkv_bias", "model.qkv_bias", ""},
    {"qk_layernorm use_qk_norm", "model.qk_norm", ""},
    {"num_experts num_local_experts n_routed_experts n_experts", "model.moe.experts", ""},
    {"moe_router_topk num_experts_per_tok experts_per_token", "model.moe.top_k", ""},
    {"moe_intermediate_size moe_ffn_hidden_size moe_inter_dim moe_hidden_dim", "model.moe.ffn", ""},
    {"first_k_dense_replace moe_layer_start_index n_dense_layers", "model.moe.first_dense", ""},
    {"decoder_sparse_step moe_layer_freq interleave_moe_layer_step", "model.moe.every", ""},
    {"shared_expert_intermediate_size moe_shared_expert_intermediate_size", "model.moe.shared_ffn", ""},
    {"num_shared_experts n_shared_experts shared_experts", "model.moe.shared_ffn",
     "shared_ffn is the width of all of them together"},
    {"moe_shared_expert_gate use_shared_expert_gate", "model.moe.shared_gate", ""},
    {"scoring_func score_func moe_router_score_function", "model.moe.scores", "softmax | sigmoid"},
    {"norm_topk_prob route_norm", "model.moe.renormalize", ""},
    {"routed_scaling_factor route_scale moe_router_topk_scaling_factor", "model.moe.scale", ""},
    {"n_group n_expert_groups num_expert_groups moe_router_num_groups", "model.moe.groups", ""},
    {"topk_group n_limited_groups num_limited_groups moe_router_group_topk", "model.moe.top_groups", ""},
    {"moe_router_enable_expert_bias use_expert_bias e_score_correction_bias", "model.moe.bias", ""},
    {"moe_router_bias_update_rate bias_update_speed bias_update_rate", "model.moe.bias_rate", ""},
    {"router_aux_loss_coef moe_aux_loss_coeff aux_loss_coef load_balance_coeff", "model.moe.balance_coef", ""},
    {"moe_z_loss_coeff router_z_loss_coef z_loss_coef", "model.moe.z_coef", ""},
    {"capacity_factor moe_expert_capacity_factor expert_capacity_factor", "",
     "no token is dropped, so experts have no capacity; parallel.expert_room bounds memory alone"},
    {"dropout attention_dropout hidden_dropout resid_pdrop attn_pdrop embd_pdrop resid_dropout attn_dropout "
     "dropout_rate dropout_p", "",
     "no dropout: the model learns from every activation; optimizer.weight_decay, more text and fewer epochs work "
     "against overfitting"},
    {"label_smoothing label_smoothing_factor", "", "no label smoothing: the loss is the plain cross entropy"},
    {"sliding_window window_size attention_window", "",
     "no sliding window: attention sees the whole sequence; model.seq_len bounds it"},
    {"initializer_range init_method_std init_std", "", "initial weights follow from run.seed and the shapes"},
    {"attn_implementation use_flash_attn flash_attention flash_attn attention_backend", "",
     "attention is always fused: no key chooses its kernel"},
    // recomputation
    {"gradient_checkpointing activation_checkpointing activation_checkpoint recompute_granularity recompute_method "
     "use_gradient_checkpointing checkpoint_activations recompute_activations activation_recompute",
     "recompute.mode", "none | selective | full"},
    {"recompute_modules recompute_layers", "recompute.modules", ""},
    // data
    {"val_files validation_files valid_files eval_file val_file val_data val_data_path valid_data_path "
     "validation_file val_path valid_path eval_data eval_dataset validation_data input_val_bin test_files",
     "data.eval_files", ""},
    {"train_files train_data train_data_path data_path train_file training_files train_path input_bin dataset_path "
     "dataset input_files", "data.files", ""},
    {"data_dir dataset_dir data_folder", "data.root", ""},
    {"tokenizer_path tokenizer_model tokenizer_name tokenizer_file tokenizer_name_or_path hf_assets_path vocab_file",
     "data.tokenizer", ""},
    {"val_fraction validation_split val_split eval_split test_size", "data.eval_fraction", ""},
    {"data_weights dataset_weights blend mixture_weights sampling_weights", "data.mixture", ""},
    {"assistant_only_loss completion_only_loss train_on_inputs train_on_prompt mask_prompt mask_inputs answers_only",
     "data.loss_mask", "of token files that prepare.py --chat has made"},
    {"packing sample_packing reset_position_ids reset_attention_mask document_mask intra_document_masking",
     "data.documents", "joined | apart: windows are always packed"},
    {"chat_template", "", "prepare.py --chat --chat-template FILE renders conversations"},
    {"num_workers dataloader_num_workers data_loader_workers", "", "batches are read ahead without workers"},
    // batch
    {"global_batch_size total_batch_size train_batch_size effective_batch_size batch_size_global", "batch.global",
     "sequences, not tokens"},
    {"micro_batch_size local_batch_size per_device_train_batch_size device_batch_size micro_batch "
     "train_micro_batch_size_per_gpu", "batch.micro", ""},
    {"batch_size", "batch.global", "over all ranks; batch.micro is what one computes at once"},
    {"accumulate accumulation accumulate_grad_batches gradient_accumulation_steps grad_accum grad_accum_steps "
     "accumulation_steps gradient_accumulation accum_steps", "batch.micro", accumulation},
    // evaluation and samples
    {"eval_steps eval_interval val_every eval_every validation_interval val_interval val_loss_every eval_freq "
     "val_check_interval validate_every validation.freq eval.interval eval.freq", "eval.every_steps", ""},
    {"eval_iters val_max_steps eval_batches val_batches limit_val_batches val_iters validation.steps",
     "eval.batches", ""},
    {"validation", "eval", ""},
    {"sample_every generate_every", "sample.every_steps", ""},
    {"max_new_tokens gen_tokens genT", "sample.tokens", ""},
    // precision
    {"mixed_precision mixed_precision_param dtype param_dtype torch_dtype amp bf16 fp32", "precision.compute",
     "bf16 | fp32; masters are fp32"},
    {"fp8 float8 mx fp8_recipe fp8_format quantization fp4 nvfp4 mxfp8", "precision.recipe", ""},
    {"fp16 loss_scale initial_loss_scale grad_scaler", "precision.compute",
     "bf16 | fp32: no fp16, and so no loss scale"},
    {"gradient_accumulation_fusion", "precision.fuse_wgrad", ""},
    // the optimizer
    {"learning_rate max_lr base_lr peak_lr", "optimizer.lr", ""},
    {"min_learning_rate lr_min final_lr end_lr", "optimizer.min_lr", ""},
    {"min_lr_factor min_lr_ratio learning_rate_decay_frac", "optimizer.min_lr", "a rate, not a share of lr"},
    {"warmup_iters lr_warmup_iters warmup_iterations lr_warmup_steps num_warmup_steps warmup",
     "optimizer.warmup_steps", ""},
    {"warmup_ratio lr_warmup_fraction warmup_fraction", "optimizer.warmup_steps", "steps, not a share of them"},
    {"lr_decay_iters lr_decay_steps decay_iters cooldown_steps lr_wsd_decay_iters warmdown_iters",
     "optimizer.decay_steps", "with schedule wsd; the other schedules end at run.steps"},
    {"decay_ratio", "optimizer.decay_steps", "steps, not a share of them"},
    {"lr_scheduler lr_scheduler_type lr_decay_style decay_type scheduler lr_schedule lr_scheduler.name",
     "optimizer.schedule", ""},
    {"grad_clip clip_grad max_grad_norm max_norm gradient_clipping gradient_clip_val clip_grad_norm",
     "optimizer.clip", ""},
    {"adam_beta1", "optimizer.beta1", ""},
    {"adam_beta2", "optimizer.beta2", ""},
    {"betas", "optimizer.beta1", "and optimizer.beta2, each a number"},
    {"adam_eps adam_epsilon", "optimizer.eps", ""},
    {"wd", "optimizer.weight_decay", ""},
    {"optim optimizer_type optimizer.name optimizer.type", "optimizer.matrices", "adamw | muon"},
    {"ema ema_decay use_ema", "", "no moving average of weights is kept"},
    {"lora peft adapter adapters freeze frozen freeze_layers", "",
     "all weights are trained: there are no adapters and no frozen layers"},
    {"early_stopping early_stop patience early_stopping_patience", "run.stop_after", "evaluations without gain"},
    // ranks
    {"parallelism", "parallel", ""},
    {"expert_parallel_degree expert_model_parallel_size ep_size expert_parallel_size", "parallel.expert", ""},
    {"tensor_parallel_degree tensor_model_parallel_size tp_size pipeline_parallel_degree "
     "pipeline_model_parallel_size pp_size context_parallel_degree context_parallel_size cp_size sequence_parallel",
     "", no_parallelism},
    {"data_parallel_shard_degree data_parallel_replicate_degree fsdp zero zero_stage use_distributed_optimizer "
     "fsdp_config deepspeed use_fsdp zero_optimization", "sharding", "optimizer | full"},
    {"ddp_bucket_size bucket_cap_mb reduce_bucket_size", "reduce.bucket_mib", ""},
    {"overlap_grad_reduce", "proof.reduce_overlap", ""},
    {"overlap_param_gather", "proof.gather_overlap", ""},
    {"init_timeout_seconds train_timeout_seconds distributed_timeout_minutes ddp_timeout", "comm.timeout_s",
     "seconds"},
    // checkpoints
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
    // logs
    {"wandb use_wandb wandb_log wandb_project report_to tensorboard tensorboard_dir enable_tensorboard "
     "logging metrics", "", logging},
    {"log_interval logging_steps log_freq", "run.log_every", ""},
    {"profiling profiler enable_profiling profile_freq", "debug.profile", ""},
};

constexpr std::size_t longest_name = 64;

/// A name as it is compared: lower case, without hyphens and underscores.
std::string folded(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

std::map<std::string, const OtherName*> by_name() {
  std::map<std::string, const OtherName*> found;
  for (const OtherName& entry : table) {
    std::istringstream words(entry.names);
    for (std::string name; words >> name;) found.emplace(folded(name), &entry);
  }
  return found;
}

}  // namespace

std::span<const OtherName> other_names() { return table; }

const OtherName* find_other_name(std::string_view path) {
  if (path.size() > longest_name) return nullptr;
  static const std::map<std::string, const OtherName*> entries = by_name();
  const std::string whole = folded(path), last = whole.substr(whole.rfind('.') + 1);
  for (const std::string& name : {whole, last})
    if (const auto found = entries.find(name); found != entries.end()) return found->second;
  return nullptr;
}

std::string meant_by(std::string_view path) {
  if (const OtherName* const other = find_other_name(path)) {
    const std::string key = other->key, note = other->note;
    if (key.empty()) return ": " + note;
    return ", did you mean " + key + "?" + (note.empty() ? "" : " (" + note + ")");
  }
  const std::string nearest = nearest_key(path);
  return nearest.empty() ? "" : ", did you mean " + nearest + "?";
}

}  // namespace tessera
