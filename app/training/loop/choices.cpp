#include "app/training/loop/choices.hpp"

#include "kernels/base/attempt.hpp"

namespace tessera {

RecordedChoices::RecordedChoices(const std::filesystem::path& path, const RunPlan& plan)
    : file_(path, ChoicesFile::Mode::write),
      batch_(plan.sizes.global, plan.sizes.micro, plan.ranks.world.size),
      rank_(plan.ranks.world.rank) {}

Problems RecordedChoices::write(std::int64_t step, const StepReport& report) {
  const ChoicesHeader& head = file_.header();
  const std::int64_t of_sequence = head.length * head.top_k;
  Problems problems;
  attempt(problems, [&] {
    std::span<const std::int32_t> rest(report.chosen);
    for (std::int64_t round = 0; round < batch_.rounds(); ++round) {
      const SampleRange piece = batch_.micro_batch(round, rank_);  // none where this rank is idle
      const auto slots = static_cast<std::size_t>(piece.count * of_sequence);
      for (std::int64_t layer = 0; layer < head.layers() && slots > 0; ++layer) {
        // mutation: choices_of_another_rank
        file_.write(step, layer, piece.first * of_sequence, rest.first(slots));
        rest = rest.subspan(slots);
      }
    }
  });
  return problems;
}

void ReplayedChoices::give(HostSequences& batch, std::span<const SampleRange> pieces, std::int64_t step,
                           Control& control) const {
  const ChoicesHeader& head = file_.header();
  const std::int64_t of_sequence = head.length * head.top_k;
  std::int64_t sequences = 0;
  for (const SampleRange& piece : pieces) sequences += piece.count;
  batch.given.resize(static_cast<std::size_t>(sequences * of_sequence * head.layers()));
  Problems problems;
  attempt(problems, [&] {
    std::span<std::int32_t> rest(batch.given);
    for (const SampleRange& piece : pieces)
      for (std::int64_t layer = 0; layer < head.layers(); ++layer) {
        const auto slots = static_cast<std::size_t>(piece.count * of_sequence);
        file_.read(step, layer, piece.first * of_sequence, rest.first(slots));
        rest = rest.subspan(slots);
      }
  });
  control.agree(problems);
}

}  // namespace tessera
