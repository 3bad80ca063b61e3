#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/convert/hf_names.hpp"
#include "io/convert/safetensors.hpp"
#include "io/convert/trained_weights.hpp"
#include "io/hdf5/file.hpp"

namespace tessera {

/// The tensors of NVFP4 weights: those of compressed-tensors, or of NVIDIA's Model Optimizer.
TESSERA_CHOICE(CodesLayout, compressed, modelopt);

/// Where codes come from and how they are laid out.
struct CodesOptions {
  std::filesystem::path step;  ///< a checkpoint
  CodesLayout layout = CodesLayout::compressed;
};

/// One tensor of a coded matrix: rows of an array of a file of codes, or a number.
struct CodedArray {
  SourceTensor tensor;        ///< name, shape and type in the new file
  std::int64_t from = 0;      ///< bytes: of its first row in the file of codes
  std::int64_t stride = 0;    ///< bytes between rows there
  std::int64_t row = 0;       ///< bytes of a row here
  std::int64_t rows = 0;      ///< 0: `number` is its content
  float number = 0;
};

/// The weights of a checkpoint that training multiplies as codes, for a folder of Hugging Face: each in the layout that
/// loaders know for its format.
class HfCodes {
 public:
  /// Quantizes the weights into `work`, an HDF5 file, as `tessera quantize STEP` does. Throws Error{file} that lists
  /// what no layout expresses: transposed matrices, cuts within blocks, formats without a reader. Local.
  HfCodes(const CodesOptions& options, Family family, const ModelConfig& model,
          const std::vector<StateTensor>& tensors, const std::filesystem::path& work);

  bool holds(const StateTensor& tensor) const { return weights_.contains(tensor.name); }
  /// The tensors of one piece of a weight that it holds.
  std::vector<CodedArray> arrays_of(const StateTensor& tensor, const ForeignPiece& piece) const;
  /// Writes tensor `index` of a file.
  void copy(const CodedArray& array, SafetensorsWriter& to, std::size_t index) const;

  /// "fp8_block, nvfp4": the formats of its weights.
  std::string formats_text() const;
  /// The quantization_config of config.json; `plain` are the modules whose matrices are no codes.
  nlohmann::ordered_json config(const std::vector<std::string>& plain) const;
  /// The text of Model Optimizer's own file, hf_quant_config.json; empty with other layouts.
  std::string modelopt_text(const std::vector<std::string>& plain) const;

 private:
  struct Group {
    std::int64_t codes, scales;  ///< bytes: where a member's arrays begin
    std::int64_t code_row, scale_row;
    float amax;
  };
  Group group_of(const StateTensor& tensor, std::int64_t member) const;
  bool deepseek() const { return coded_.size() == 1 && coded_.contains("fp8_block"); }

  CodesLayout layout_;
  TrainedWeights weights_;
  std::map<std::string, std::vector<std::string>> coded_;  ///< names of modules by format
  std::optional<hdf5::File> index_;
  std::optional<PosixFile> file_;
};

}  // namespace tessera
