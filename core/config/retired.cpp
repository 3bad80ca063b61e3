#include "core/config/retired.hpp"

#include <algorithm>

namespace tessera {

std::span<const Retired> retired() {
  static constexpr Retired entries[] = {
      {"gather.overlap", "", "proof.gather_overlap", ""},
      {"gather.wire", "", "proof.wire", ""},
      {"gather.cuts", "", "proof.cuts", ""},
      {"gather.staging", "", "proof.staging", ""},
      {"reduce.overlap", "", "proof.reduce_overlap", ""},
      {"run.graph", "", "proof.graph", ""},
      {"comm.copy_engines", "", "proof.copy_engines", ""},
      {"parallel.oversubscribe", "", "proof.share_gpu", ""},
      {"gather.granularity", "unit", "block", ""},
      {"reduce.order", "library", "rank", "rank gives the same bits on every back end"},
      {"run.determinism", "", "", "every run repeats"},
      {"model.kind", "", "", "gpt was its only value"},
      {"optimizer.others", "", "", "adamw was its only value"},
  };
  return entries;
}

std::span<const BuiltIn> built_in() {
  static constexpr BuiltIn entries[] = {{"data.eval_windows", "tail"}};
  return entries;
}

const Retired* find_retired(std::string_view key, std::string_view value) {
  const auto found = std::ranges::find_if(
      retired(), [&](const Retired& one) { return one.key == key && (one.value.empty() || one.value == value); });
  return found == retired().end() ? nullptr : &*found;
}

std::string refusal_of(const Retired& entry) {
  const std::string now(entry.now), value(entry.value), why(entry.why);
  if (!value.empty()) return value + (why.empty() ? " is " + now + " now, with the same meaning" : " is gone: " + why);
  if (!now.empty()) return "is " + now + " now, with the same values";
  return "is no key any more: " + why + "; leave it out";
}

}  // namespace tessera
