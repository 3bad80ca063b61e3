#include "io/text/kinship.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace tessera {
namespace {

using Json = nlohmann::json;  // sorts keys, whose order says nothing

/// What decides the ids of a tokenizer, in one spelling.
struct Essence {
  std::map<std::int64_t, std::string> tokens;  ///< by id, added ones too
  std::map<std::string, std::int64_t> ids;
  std::vector<std::string> merges;
  Json model, added, normalizer, pre_tokenizer, post_processor;
};

/// The object without keys that change no id, or have the value that their absence means.
Json pruned(Json part) {
  static const std::map<std::string, Json> meaningless = {
      {"trim_offsets", nullptr}, {"use_regex", true}, {"add_prefix_space", true}, {"invert", false}};
  if (part.is_array()) {
    Json parts = Json::array();
    for (const Json& member : part) parts.push_back(pruned(member));
    return parts;
  }
  if (!part.is_object()) return part;
  for (const auto& [key, absent] : meaningless)
    if (part.contains(key) && (absent.is_null() || part[key] == absent)) part.erase(key);
  for (auto& [key, value] : part.items()) value = pruned(value);
  return part;
}

/// A part of the pipeline as the list of its members, nested sequences taken apart.
Json steps_of(const Json& part, const char* members) {
  Json steps = Json::array();
  if (part.is_null()) return steps;
  if (!part.is_object() || part.value("type", "") != "Sequence" || !part.contains(members)) {
    steps.push_back(pruned(part));
    return steps;
  }
  for (const Json& member : part[members])
    for (const Json& step : steps_of(member, members)) steps.push_back(step);
  return steps;
}

std::string merge_text(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  return merge.is_string() ? merge.get<std::string>() : merge.dump();
}

/// The keys of the model besides its tokens and merges, without those that say nothing.
Json settings_of(Json model) {
  for (const char* key : {"vocab", "merges", "dropout", "fuse_unk", "unk_token"}) model.erase(key);
  Json kept = Json::object();
  for (const auto& [key, value] : model.items())
    if (!value.is_null() && value != false && value != "") kept[key] = value;
  return kept;
}

void take_tokens(Essence& essence, const Json& json) {
  const auto take = [&](const std::string& token, std::int64_t id) {
    essence.tokens[id] = token;
    essence.ids[token] = id;
  };
  const Json& vocab = json.at("model").at("vocab");
  std::int64_t place = 0;
  for (const auto& [token, id] : vocab.items())
    vocab.is_object() ? take(token, id.get<std::int64_t>()) : take(id.at(0).get<std::string>(), place++);
  essence.added = Json::object();
  for (const Json& token : json.value("added_tokens", Json::array())) {
    const bool special = token.value("special", false);
    take(token.at("content"), token.at("id"));
    essence.added[token.at("content").get<std::string>()] = {
        token.value("single_word", false), token.value("lstrip", false), token.value("rstrip", false),
        token.value("normalized", !special)};
  }
}

/// Throws Json::exception for a text that is no tokenizer.json.
Essence essence_of(const std::string& text) {
  Json json = Json::parse(text);
  if (Json& model = json.at("model"); !model.contains("type") && model.contains("merges")) model["type"] = "BPE";
  Essence essence;
  take_tokens(essence, json);
  essence.model = settings_of(json.at("model"));
  if (json.at("model").contains("merges"))
    for (const Json& merge : json["model"]["merges"]) essence.merges.push_back(merge_text(merge));
  essence.normalizer = steps_of(json.value("normalizer", Json()), "normalizers");
  essence.pre_tokenizer = steps_of(json.value("pre_tokenizer", Json()), "pretokenizers");
  essence.post_processor = steps_of(json.value("post_processor", Json()), "processors");
  // ByteLevel as a post-processor changes offsets alone.
  std::erase_if(essence.post_processor.get_ref<Json::array_t&>(),
                [](const Json& step) { return step.is_object() && step.value("type", "") == "ByteLevel"; });
  return essence;
}

/// The first token that the two have at different places; empty: none.
std::string moved_token(const Essence& weights, const Essence& run) {
  std::int64_t others = 0;
  std::string first;
  for (const auto& [id, token] : run.tokens) {
    const auto there = weights.tokens.find(id);
    const auto place = weights.ids.find(token);
    const bool same = there == weights.tokens.end() ? place == weights.ids.end() : there->second == token;
    if (same) continue;
    if (first.empty())
      first = there == weights.tokens.end()
                  ? fmt::format("\"{}\" is token {} there, and {} here", token, place->second, id)
                  : fmt::format("token {} is \"{}\" there, and \"{}\" here", id, there->second, token);
    ++others;
  }
  return others > 1 ? fmt::format("{}, and {} more differ", first, others - 1) : first;
}

std::string conflict_of(const Essence& weights, const Essence& run) {
  if (weights.model.value("type", "") != run.model.value("type", ""))
    return fmt::format("its model is {} there, and {} here", weights.model.value("type", "of no type"),
                       run.model.value("type", "of no type"));
  if (const std::string moved = moved_token(weights, run); !moved.empty()) return moved;
  if (weights.merges.size() > run.merges.size() ||
      !std::equal(weights.merges.begin(), weights.merges.end(), run.merges.begin())) {
    const auto [there, here] = std::ranges::mismatch(weights.merges, run.merges);
    return fmt::format("its merges differ from the {}th on", 1 + (there - weights.merges.begin()));
  }
  if (weights.model != run.model) return "its model is set otherwise: " + Json::diff(weights.model, run.model).dump();
  if (weights.normalizer != run.normalizer) return "its normalizer differs";
  if (weights.pre_tokenizer != run.pre_tokenizer) return "its pre_tokenizer differs";
  return "";
}

/// The differences that leave known tokens their ids.
std::string told_of(const Essence& weights, const Essence& run) {
  std::vector<std::string> lines;
  const auto list = [&](const Essence& has, const Essence& lacks, const char* how) {
    std::string names;
    std::int64_t count = 0;
    for (const auto& [id, token] : has.tokens)
      if (!lacks.tokens.contains(id) && ++count <= 3)
        names += fmt::format("{}\"{}\" ({})", names.empty() ? "" : ", ", token, id);
    if (count > 0)
      lines.push_back(
          fmt::format("{} token{} {}: {}{}", count, count == 1 ? "" : "s", how, names, count > 3 ? ", ..." : ""));
  };
  list(run, weights, "more than the weights were trained with");
  list(weights, run, "fewer than the weights were trained with");
  if (run.merges.size() > weights.merges.size())
    lines.push_back(fmt::format("{} merges more", run.merges.size() - weights.merges.size()));
  for (const auto& [token, how] : run.added.items())
    if (weights.added.contains(token) ? weights.added[token] != how : weights.ids.contains(token))
      lines.push_back(fmt::format("\"{}\" is found in text otherwise", token));
  if (weights.post_processor != run.post_processor) lines.push_back("another template around a text");
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace

Kinship kinship_of(const std::string& weights, const std::string& run) {
  if (weights == run) return {};
  std::optional<Essence> theirs, ours;
  try {
    theirs = essence_of(weights);
    ours = essence_of(run);
  } catch (const Json::exception&) {
    return {fmt::format("{} cannot be read, so the two cannot be compared", theirs ? "this run's" : "theirs"), ""};
  }
  if (std::string conflict = conflict_of(*theirs, *ours); !conflict.empty()) return {conflict, ""};
  return {"", told_of(*theirs, *ours)};
}

}  // namespace tessera
