#include "app/training/start/disk_room.hpp"

#include <algorithm>
#include <system_error>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/checkpoint/room.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/convert/trained_weights.hpp"
#include "io/files/text_file.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

/// Bytes of quantized.h5, at most: two copies of every weight that is held as codes, and a scale a block.
std::int64_t quantized_bytes(const RunPlan& plan) {
  if (!plan.config.checkpoint.quantized) return 0;
  constexpr std::int64_t copies = 2, bits_of_scales = 1;
  const TrainedWeights weights = trained_weights(plan.config);
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : plan.saved) {
    const auto found = tensor.slot == "model" ? weights.find(tensor.name) : weights.end();
    if (found == weights.end()) continue;
    const std::int64_t rows = found->second.rows * (tensor.shape.rank() == 3 ? tensor.shape[0] : 1);
    bytes += rows * tensor.shape[-1] * copies * (traits_of(found->second.format).bits + bits_of_scales) / 8;
  }
  return bytes;
}

}  // namespace

Problems problems_with_room(const RunPlan& plan, const std::filesystem::path& from, std::int64_t stop_at) {
  const CheckpointConfig& checkpoint = plan.config.checkpoint;
  PlannedSaves saves;
  saves.run = checkpoint.dir.get();
  saves.last = stop_at < 0 ? plan.config.run.steps : std::min(stop_at, plan.config.run.steps);
  saves.every = checkpoint.every_steps;
  saves.keep_last = checkpoint.keep_last + (checkpoint.keep_best ? 1 : 0);
  if (checkpoint.keep_best && saves.every == 0) saves.every = plan.config.eval.every_steps;
  saves.keep_every = checkpoint.keep_every;
  saves.beside = quantized_bytes(plan);
  if (!from.empty()) {
    saves.step = parse_manifest(read_text_file(from / manifest_file), from / manifest_file).counters.step;
    std::error_code absent;
    if (std::filesystem::equivalent(from, saves.run / step_folder(saves.step), absent)) saves.kept = saves.step;
  }
  return problems_with_room(saves, plan.saved);
}

}  // namespace tessera
