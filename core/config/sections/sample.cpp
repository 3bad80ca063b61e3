#include "core/config/sections/sample.hpp"

#include "core/config/config.hpp"

namespace tessera {

void SampleConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  if (tokens > 0 && config.data.kind != DataKind::text && config.data.tokenizer.empty())
    found.push_back({{"sample.tokens", "data.kind", "data.tokenizer"}, "needs data.tokenizer, or data.kind text"});
  if (tokens > 0 && prompt.empty())
    found.push_back({{"sample.prompt", "sample.tokens"}, "is empty: generation starts from at least one byte"});
}

void SampleConfig::advise(const RunConfig&, std::vector<Finding>& found) const {
  if (every_steps > 0 && tokens == 0)
    found.push_back({{"sample.every_steps", "sample.tokens"}, "no sample: sample.tokens is 0"});
}

std::span<const OtherName> SampleConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"sample_every generate_every", "sample.every_steps", ""},
      {"max_new_tokens gen_tokens genT", "sample.tokens", ""},
  };
  return rows;
}

}  // namespace tessera
