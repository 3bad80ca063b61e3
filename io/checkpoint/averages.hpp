#pragma once
#include <memory>

#include "io/checkpoint/reader.hpp"

namespace tessera {

/// Which weights of a checkpoint are meant: those that were trained, or their moving averages (optimizer.ema).
enum class Taken { trained, averages };

/// The moving averages that a checkpoint holds of its weights (optimizer.ema), under the names of the weights; its
/// other state is left out. Throws Error{file} if it holds none, the same on all ranks. Local.
std::unique_ptr<TensorSource> averages_of(std::unique_ptr<Checkpoint> checkpoint);

/// Why a checkpoint has no averages to give.
std::string without_averages_text(const std::string& name);

}  // namespace tessera
