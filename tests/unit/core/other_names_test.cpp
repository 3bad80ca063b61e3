#include "core/config/other_names.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include "core/config/keys.hpp"

namespace tessera {
namespace {

std::vector<std::string> words(const char* text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

std::string folded(const std::string& name) {
  std::string plain;
  for (const char c : name)
    if (c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

TEST(OtherNames, LeadToKeysThatAre) {
  std::set<std::string> own, seen;
  for (const KeyDoc& doc : key_docs()) own.insert(folded(doc.path.substr(doc.path.rfind('.') + 1)));
  for (const OtherName& entry : other_names()) {
    const std::string key = entry.key;
    EXPECT_TRUE(key.empty() || find_key(key)) << key;
    EXPECT_FALSE(key.empty() && std::string(entry.note).empty()) << entry.names;
    for (const std::string& name : words(entry.names)) {
      EXPECT_TRUE(seen.insert(folded(name)).second) << name << " stands twice";
      EXPECT_FALSE(find_key(name)) << name << " is a key";
      EXPECT_FALSE(name.find('.') == std::string::npos && own.contains(folded(name))) << name << " is a key's word";
    }
  }
}

/// A name as libraries spell it: snake_case, kebab-case, camelCase or capitals.
std::string spelt(const std::string& name, int way) {
  std::string text;
  bool up = false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '_' && way == 2)
      up = true;
    else if (c == '_' && way == 1)
      text += '-';
    else
      text += static_cast<char>(up || way == 3 ? std::toupper(byte) : c), up = false;
  }
  return text;
}

TEST(OtherNames, AreKnownInEverySectionAndSpelling) {
  for (const OtherName& entry : other_names())
    for (const std::string& name : words(entry.names))
      for (const char* section : {"", "model.", "training.", "run."})
        for (int way = 0; way < 4; ++way) {
          const std::string path = (name.find('.') == std::string::npos ? section : "") + spelt(name, way);
          if (find_other_name(folded(path)) != find_other_name(path)) ADD_FAILURE() << path;
          const std::string meant = meant_by(path), key = entry.key;
          if (path.size() > 64) continue;
          EXPECT_EQ(meant.rfind(key.empty() ? ": " + std::string(entry.note) : ", did you mean " + key + "?", 0), 0u)
              << path << meant;
        }
}

TEST(OtherNames, ComeBeforeLikeness) {
  const std::map<std::string, std::string> wanted = {
      {"data.val_files", "data.eval_files"},          {"model.gradient_checkpointing", "recompute.mode"},
      {"checkpoint.save_every", "checkpoint.every_steps"}, {"batch.accumulate", "batch.micro"},
      {"run.epochs", "run.steps"},                    {"per_device_train_batch_size", "batch.micro"},
      {"training.local_batch_size", "batch.micro"},   {"lr_scheduler.warmup_ratio", "optimizer.warmup_steps"},
      {"activation_checkpoint", "recompute.mode"},    {"optimizer.grad_clip", "optimizer.clip"},
      {"model.n_embd", "model.hidden"},               {"checkpoint.interval", "checkpoint.every_steps"},
      {"save_total_limit", "checkpoint.keep_last"},   {"model.rope_theta", "model.rope_base"},
      {"trainer.early_stopping_patience", "run.stop_after"}, {"load_best_model_at_end", "checkpoint.keep_best"},
      {"assistant_only_loss", "data.loss_mask"},      {"data.sample_packing", "data.documents"},
      {"training.ema_decay", "optimizer.ema"},        {"val_datasets", "data.eval_sets"}};
  for (const auto& [path, key] : wanted) EXPECT_EQ(meant_by(path).rfind(", did you mean " + key + "?", 0), 0u) << path;
  for (const char* none : {"model.dropout", "attention_dropout", "lora", "parallel.tensor_parallel_degree"})
    EXPECT_EQ(meant_by(none).rfind(": ", 0), 0u) << none;
  EXPECT_NE(meant_by("model.dropout").find("no dropout"), std::string::npos);
  EXPECT_EQ(meant_by("optimizer.rl"), ", did you mean optimizer.lr?") << "else by likeness";
  EXPECT_EQ(meant_by("pipelines"), "");
  EXPECT_EQ(meant_by(std::string(100000, 'x')), "");
}

}  // namespace
}  // namespace tessera
