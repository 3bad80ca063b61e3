#include "core/config/sections/data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <set>

#include "core/config/config.hpp"

namespace tessera {
namespace {

void check_mixture(const DataConfig& data, std::vector<Finding>& found) {
  if (data.mixture.size() != data.files.size())
    found.push_back({{"data.mixture", "data.files"},
                     fmt::format("is of length {}, and data.files of length {}: give each pattern its weight",
                                 data.mixture.size(), data.files.size())});
  const double sum = std::accumulate(data.mixture.begin(), data.mixture.end(), 0.0);
  if (const double least = std::ranges::min(data.mixture); least < 1e-6 * sum)
    found.push_back(
        {{"data.mixture"},
         fmt::format("{} is less than a millionth of the sum, {}: give more, or leave that corpus out", least, sum)});
  if (data.eval_fraction > 0.0)
    found.push_back({{"data.eval_fraction", "data.mixture"},
                     fmt::format("keeps a share of {} of one corpus for evaluation; a mixture is evaluated on "
                                 "data.eval_files",
                                 data.eval_fraction.get())});
}

bool is_name(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; });
}

void check_sets(const std::vector<EvalSet>& sets, std::vector<Finding>& found) {
  std::set<std::string> names;
  for (const EvalSet& set : sets) {
    const auto refuse = [&](const std::string& why) {
      found.push_back({{"data.eval_sets"}, fmt::format("name {}: {}", deck_text(set.name), why)});
    };
    if (!is_name(set.name)) refuse("it names columns of records: use letters, digits, - and _");
    if (set.name == held_out) refuse("that is the name of the set of eval_files or eval_fraction: give another");
    if (!names.insert(set.name).second) refuse("two sets have it: give each its own");
    if (set.files.empty()) refuse("files is empty: name a pattern, or leave the set out");
  }
}

bool is_evaluated(const RunConfig& c) { return c.data.evaluates(); }
constexpr const char* with_evaluation = "with eval_fraction above 0, eval_files or eval_sets";
bool leaves_root_out(const std::vector<std::string>& patterns) {
  return std::ranges::all_of(patterns, [](const std::string& p) { return std::filesystem::path(p).is_absolute(); });
}

}  // namespace

void DataConfig::derive(const RunConfig& config) {
  const bool divided = kind == DataKind::text && eval_files.empty() && eval_sets.empty() && mixture.empty();
  eval_fraction.fill(divided ? 0.05 : 0.0);
  seed.fill(config.run.seed);
}

void DataConfig::check(const RunConfig&, std::vector<Finding>& found) const {
  if (kind == DataKind::text && !tokenizer.empty())
    found.push_back({{"data.tokenizer", "data.kind"},
                     "is of no use with data.kind text, whose bytes are tokens: make token files of the text "
                     "(examples/prepare_data) and use data.kind tokens"});
  if (kind == DataKind::text && loss_mask)
    found.push_back({{"data.loss_mask", "data.kind"},
                     "needs data.kind tokens: prepare.py --chat writes token files, and which tokens are answers"});
  check_sets(eval_sets, found);
  if (!mixture.empty())
    check_mixture(*this, found);
  else if (!eval_files.empty() && eval_fraction > 0.0)
    found.push_back({{"data.eval_fraction", "data.eval_files"},
                     fmt::format("keeps a share of {} of the files for evaluation, and eval_files are for it: leave "
                                 "one of them out",
                                 eval_fraction.get())});
}

std::vector<std::string> DataConfig::evaluation_names() const {
  if (eval_sets.empty()) return std::vector<std::string>(holds_out() ? 1 : 0);
  std::vector<std::string> names;
  if (holds_out()) names.emplace_back(held_out);
  for (const EvalSet& set : eval_sets) names.push_back(set.name);
  return names;
}

std::span<const Effect> DataConfig::effects() {
  static constexpr Effect rows[] = {
      {"data.root", "data.files", "on patterns that are no absolute paths",
       [](const RunConfig& c) {
         return !leaves_root_out(c.data.files) || !leaves_root_out(c.data.eval_files) ||
                std::ranges::any_of(c.data.eval_sets, [](const EvalSet& set) { return !leaves_root_out(set.files); });
       }},
      {"data.eval_windows", "data.eval_fraction", with_evaluation, is_evaluated},
      {"data.eval_seed", "data.eval_fraction", with_evaluation, is_evaluated},
      {"data.eval_seed", "data.eval_windows", "with eval_windows drawn",
       [](const RunConfig& c) { return !is_evaluated(c) || c.data.eval_windows == EvalWindows::drawn; }},
      {"data.seed", "data.shuffle", "with shuffle true", [](const RunConfig& c) { return c.data.shuffle; }},
  };
  return rows;
}

std::span<const OtherName> DataConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"val_files validation_files valid_files eval_file val_file val_data val_data_path valid_data_path "
       "validation_file val_path valid_path eval_data eval_dataset validation_data input_val_bin test_files",
       "data.eval_files", ""},
      {"eval_datasets val_datasets validation_sets valid_sets eval_dataset_dict", "data.eval_sets", ""},
      {"train_files train_data train_data_path data_path train_file training_files train_path input_bin dataset_path "
       "dataset input_files", "data.files", ""},
      {"data_dir dataset_dir data_folder", "data.root", ""},
      {"tokenizer_path tokenizer_model tokenizer_name tokenizer_file tokenizer_name_or_path hf_assets_path vocab_file",
       "data.tokenizer", ""},
      {"val_fraction validation_split val_split eval_split test_size", "data.eval_fraction", ""},
      {"data_seed shuffle_seed", "data.seed", ""},
      {"data_weights dataset_weights blend mixture_weights sampling_weights", "data.mixture", ""},
      {"assistant_only_loss completion_only_loss train_on_inputs train_on_prompt mask_prompt mask_inputs answers_only",
       "data.loss_mask", "of token files that prepare.py --chat has made"},
      {"packing sample_packing reset_position_ids reset_attention_mask document_mask intra_document_masking",
       "data.documents", "joined | apart: windows are always packed"},
      {"chat_template", "", "prepare.py --chat --chat-template FILE renders conversations"},
      {"num_workers dataloader_num_workers data_loader_workers", "", "batches are read ahead without workers"},
  };
  return rows;
}

}  // namespace tessera
