#include "io/checkpoint/manifest.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "core/config/value.hpp"
#include "core/config/visitor.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

std::string self_digest(Json json) {
  json.erase("manifest_digest");
  return hex(fnv1a64(json.dump()));
}

/// Collects key and value of every model key that fixes tensors.
class Fingerprint : public ConfigVisitor<Fingerprint> {
 public:
  std::string text;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if (key.restart == Restart::fixed) text += std::string(key.name) + ": " + deck_text(member) + "\n";
  }
  template <class S> auto* enter(const Section& section, const S& member) {
    auto* const inside = present(member);
    if (inside) text += std::string(section.name) + ":\n";
    return inside;
  }
};

/// A double as the hex of its bits, since its decimal form might lose some.
Json exact(double value) { return hex(std::bit_cast<std::uint64_t>(value)); }
Json exact(std::int64_t value) { return value; }
Json exact(std::uint64_t value) { return value; }

void read_exact(const Json& json, double& value) {
  value = std::bit_cast<double>(static_cast<std::uint64_t>(std::stoull(json.get<std::string>(), nullptr, 16)));
}
template <class Integer>
void read_exact(const Json& json, Integer& value) {
  value = json.get<Integer>();
}

/// Reads counters: first the run's own by path, then the norms in order. All others are counters of rules; those stored
/// as text are doubles. AdamW's have been the same in every version.
StateCounters read_counters(const Json& json) {
  StateCounters counters;
  std::set<std::string> own;
  StateCounters::visit_run(counters, [&](const char* path, auto& value) {
    read_exact(json.at(path), value);
    own.insert(path);
  });
  for (const auto& [path, value] : json.items()) {
    if (own.contains(path)) continue;
    if (path.starts_with(StateCounters::norm_prefix)) {
      read_exact(value, counters.norms.emplace_back());
      continue;
    }
    if (!path.starts_with(RuleCounter::group)) throw std::runtime_error(path + " is no counter");
    RuleCounter counter{path.substr(RuleCounter::group.size()), std::int64_t{0}};
    if (value.is_string()) counter.value = 0.0;
    std::visit([&stored = value](auto& held) { read_exact(stored, held); }, counter.value);
    counters.rules.push_back(std::move(counter));
  }
  return counters;
}

Manifest read(const Json& json) {
  Manifest m;
  m.format = {json.at("format_version").at(0), json.at("format_version").at(1)};
  m.counters = read_counters(json.at("state"));
  if (json.contains("chain")) m.counters.chain = std::stoull(json.at("chain").get<std::string>(), nullptr, 16);
  m.content_digest = json.at("content_digest");
  m.run_id = json.at("run_id");
  m.version = json.at("version");
  m.deck_sha256 = json.at("deck_sha256");
  m.model_sha256 = json.at("model_sha256");
  m.corpus_hash = json.at("corpus_hash");
  m.world_size = json.at("world_size");
  m.experts = choice_named<ExpertWeights>(json.at("expert_layout").get<std::string>()).value();
  for (const auto& [name, bytes] : json.at("files").items()) m.files[name] = bytes;
  if (json.contains("structures"))
    for (const auto& [name, digest] : json.at("structures").items()) m.structures[name] = digest;
  return m;
}

}  // namespace

std::string FormatVersion::text() const { return fmt::format("{}.{}", major, minor); }

std::int64_t Manifest::bytes() const {
  std::int64_t all = 0;
  for (const auto& [name, size] : files) all += size;
  return all;
}

std::string sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1)
    throw Error(Exit::environment, "libcrypto has no SHA-256: its configuration (openssl.cnf) forbids it");
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string model_fingerprint(const ModelConfig& model) {
  Fingerprint fingerprint;
  ModelConfig::visit(model, fingerprint);
  return sha256(fingerprint.text);
}

std::string to_json(const Manifest& m) {
  Json json = {{"file_type", checkpoint_file_type},
               {"format_version", {m.format.major, m.format.minor}},
               {"step", m.counters.step},
               {"tokens", m.counters.tokens},
               {"content_digest", m.content_digest},
               {"chain", hex(m.counters.chain)},
               {"run_id", m.run_id},
               {"version", m.version},
               {"deck_sha256", m.deck_sha256},
               {"model_sha256", m.model_sha256},
               {"corpus_hash", m.corpus_hash},
               {"world_size", m.world_size},
               {"expert_layout", name_of(m.experts)}};
  StateCounters::visit(m.counters, [&](const char* path, auto value) { json["state"][path] = exact(value); });
  for (const auto& [name, bytes] : m.files) json["files"][name] = bytes;
  for (const auto& [name, digest] : m.structures) json["structures"][name] = digest;
  json["manifest_digest"] = self_digest(json);
  return json.dump(2) + '\n';
}

bool of_later_format(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  const Json version = json.is_object() ? json.value("format_version", Json()) : Json();
  if (!version.is_array() || version.size() != 2 || !version[0].is_number_integer() || !version[1].is_number_integer())
    return false;
  const FormatVersion own;
  return version[0] > own.major || (version[0] == own.major && version[1] > own.minor);
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  const auto refuse_it = [&](const std::string& why) { return Error(Exit::file, path.string() + ": " + why); };
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("file_type", Json()) != checkpoint_file_type)
    throw refuse_it("is no checkpoint's manifest");
  try {
    const FormatVersion format{json.at("format_version").at(0), json.at("format_version").at(1)}, own;
    // The version is checked before the digest, which a later version may define anew.
    if (format.major != own.major || format.minor > own.minor)
      throw refuse_it(fmt::format("format {}, this build reads {}.0-{}", format.text(), own.major, own.text()));
    if (json.at("manifest_digest") != self_digest(json))
      throw refuse_it("was changed after it was written: its digest does not fit");
    return read(json);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw refuse_it(std::string("is no whole manifest: ") + error.what());
  }
}

}  // namespace tessera
