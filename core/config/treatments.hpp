#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.hpp"
#include "core/recipe/treatment.hpp"
#include "kernels/formats/id.hpp"

namespace tessera {

/// By which rules a config's matrices are quantized. Total: of a config that is refused too.
TreatmentRules treatment_rules(const RunConfig& config);

/// A matrix that rules are for, or the experts' of a block.
struct RuledMatrix {
  std::int64_t block;  ///< -1: the head, which is in none
  MatrixName part;
};
/// All of a model, in its order.
std::vector<RuledMatrix> ruled_matrices(const ModelConfig& model);

/// The blocks that a rule's text names: first N, last N, A or A-B; empty if it names none of `layers` blocks.
std::optional<BlockRange> blocks_named(std::string_view text, std::int64_t layers);

/// The matrices of a config's model that are treated alike.
struct TreatedAlike {
  Treatment treatment;
  std::string which;  ///< "attention.qkv, mlp.up of blocks 0-3; head"
};
/// All matrices that rules are for, in the order of the model.
std::vector<TreatedAlike> treated_alike(const RunConfig& config);

/// Formats that cannot be as a deck describes them; and advice where no recipe names one.
void check_formats(const NamedFormats& named, std::vector<Finding>& found);
void advise_formats(const PrecisionConfig& precision, std::vector<Finding>& found);
/// Contradictions of recipes and rules.
void check_treatments(const RunConfig& config, std::vector<Finding>& found);
/// Advice on rules of which later ones decide all matrices.
void advise_treatments(const RunConfig& config, std::vector<Finding>& found);
/// Whether precision.recipe is that of any matrix.
bool recipe_decides(const RunConfig& config);

/// Whether any matrix's factors are quantized.
bool quantizes(const RunConfig& config);

/// The formats of weights that are stored as codes where weights are held quantized, each once.
std::vector<FormatId> coded_weights(const RunConfig& config);

}  // namespace tessera
